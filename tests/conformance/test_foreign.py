"""Histories of servers that are not ours, judged again: the reviewed verdicts, by the specs of that time.

`histories/NAME.jsonl` was recorded from a real server. `NAME.json` says how, and what the verdicts must be,
reviewed against what the server is known to do. `histories/specs/` holds the specs as they stood then: a spec
of today may send other requests, and a history is of those it holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.load import Loaded, load_all, spec_files
from conformance.rejudge import columns
from conformance.report.terminal import Entry

HERE = Path(__file__).parent / "histories"
NAMES = sorted(path.stem for path in HERE.glob("*.jsonl"))
LIMIT = 300_000
"""Bytes of one history: they are test data of every clone."""


def specs_of(history: Path) -> list[Loaded]:
    """The specs, as they were then, of the workloads that a history holds."""
    held = {e["spec"] for e in map(json.loads, history.read_text().splitlines()) if e["event"] == "begin"}
    loaded = [one for one in load_all(spec_files(HERE / "specs")) if isinstance(one, Loaded)]
    return [one for one in loaded if one.spec.id in held]


def judged(history: Path) -> list[Entry]:
    (column,) = columns([history], specs_of(history))
    assert not column.notes
    return list(column.entries)


def verdicts(entries: list[Entry]) -> dict[str, list[str]]:
    """Words by spec and requirement, in the order of the spec's expectations and rungs."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        found.setdefault(f"{entry.spec} {entry.requirement}", []).append(str(entry.status))
    return found


def reason(entries: list[Entry], spec: str, requirement: str) -> str:
    return next(e.reason for e in entries if (e.spec, e.requirement) == (spec, requirement))


def rewritten(history: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy whose events went through `change`."""
    events = [json.loads(line) for line in history.read_text().splitlines()]
    for event in events:
        change(event)
    copy = folder / history.name
    copy.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))
    return copy


def test_the_servers_that_were_run_are_here() -> None:
    whole = ["llama-server", "mlx-lm", "rapid-mlx", "vllm"]
    one_case = ["llama-server-choices", "mlx-lm-wide", "vllm-seeded"]
    assert sorted([*whole, *one_case]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_history_is_judged_as_reviewed(name: str) -> None:
    reviewed = json.loads((HERE / f"{name}.json").read_text())
    assert verdicts(judged(HERE / f"{name}.jsonl")) == reviewed["verdicts"]


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_history_is_small_and_names_no_place(name: str) -> None:
    text = (HERE / f"{name}.jsonl").read_text()
    assert len(text) < LIMIT
    assert "/tmp/" not in text


def test_of_eight_in_slots_two_adopted_and_nothing_but_the_claim_excuses_it(tmp_path: Path) -> None:
    def forget_claims(event: dict[str, Any]) -> None:
        if event["event"] == "facts":
            event["facts"]["claims"] = {}

    entries = judged(rewritten(HERE / "llama-server.jsonl", tmp_path, forget_claims))
    assert verdicts(entries)["adopt/warm-burst adopt/1"] == ["fail"]
    assert reason(entries, "adopt/warm-burst", "adopt/1").startswith("only 2 of 8 adopted")
    assert verdicts(entries)["adopt/warm-burst store/3"] == ["fail"]


def test_tokens_of_logprobs_that_were_not_sampled_are_told() -> None:
    said = reason(judged(HERE / "mlx-lm.jsonl"), "out/logprobs", "out/7")
    assert "they are not the tokens of the reply" in said


def test_a_count_of_every_token_of_a_repeat_is_found() -> None:
    said = reason(judged(HERE / "rapid-mlx.jsonl"), "adopt/ladder-granule", "adopt/6")
    assert said == "again1[0] reports all 25 of its prompt tokens cached; the last one is always computed"


@pytest.mark.parametrize("name", ["mlx-lm", "vllm"])
@pytest.mark.parametrize(("cached", "broken"), [(0, "adopt/1"), (10**6, "count/1")])
def test_verdicts_on_foreign_data_follow_the_data(
    name: str, cached: int, broken: str, tmp_path: Path
) -> None:
    def report(event: dict[str, Any]) -> None:
        if event["event"] == "outcome" and event["outcome"]["step"] == "eight":
            event["outcome"]["cached"] = cached

    entries = judged(rewritten(HERE / f"{name}.jsonl", tmp_path, report))
    assert verdicts(entries)[f"adopt/warm-burst {broken}"] == ["fail"]

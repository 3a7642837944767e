"""Histories of servers that are not ours, judged again: the reviewed verdicts, from the specs as they were.

`histories/NAME.jsonl` was recorded from a real server; `NAME.json` says how, and what each expectation's
verdict must be, reviewed against what the server is known to do. `histories/specs/` holds the specs as they
stood when the files were recorded: a spec of today may send other requests than a history holds.
"""

from __future__ import annotations

import json
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


def changed(history: Path, target: Path, step: str, **values: Any) -> Path:
    """A copy in which the replies of one step say something else."""
    lines = []
    for line in history.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "outcome" and event["outcome"]["step"] == step:
            event["outcome"].update(values)
            line = json.dumps(event, separators=(",", ":"))
        lines.append(line)
    copy = target / history.name
    copy.write_text("\n".join(lines) + "\n")
    return copy


def test_the_servers_that_were_run_are_here() -> None:
    assert NAMES == ["llama-server", "mlx-lm", "vllm"]


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_history_is_judged_as_reviewed(name: str) -> None:
    reviewed = json.loads((HERE / f"{name}.json").read_text())
    assert verdicts(judged(HERE / f"{name}.jsonl")) == reviewed["verdicts"]


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_history_is_small_and_names_no_place(name: str) -> None:
    text = (HERE / f"{name}.jsonl").read_text()
    assert len(text) < LIMIT
    assert "/tmp/" not in text

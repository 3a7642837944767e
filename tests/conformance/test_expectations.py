"""The shipped deviations, held to what was recorded: expected failures that fail once they are mended.

The histories and the specs of their time are those of `test_foreign.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from conformance import known
from conformance.known import FOLDER, load
from conformance.load import load as load_spec
from conformance.load import spec_files
from tests.conformance.test_foreign import HERE, rewritten

PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
FILES = [*sorted(FOLDER.glob("*.yaml")), *sorted((FOLDER / "named").glob("*.yaml"))]
RECORDED = date(2026, 11, 29)
"""When the histories were: what is expected then must not depend on the day of the test."""
Event = dict[str, Any]
Mend = Callable[[Event], None]
Judge = Callable[..., pytest.RunResult]


class Then(datetime):
    """A clock that stands."""

    @classmethod
    def now(cls, tz: Any = None) -> Then:
        return cls(RECORDED.year, RECORDED.month, RECORDED.day, tzinfo=tz)


@pytest.fixture
def judge(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """One spec judged by a history, as a user replays it."""
    monkeypatch.setattr(known, "datetime", Then)

    def result(spec: str, history: Path, *args: str) -> pytest.RunResult:
        path = HERE / "specs" / f"{spec}.yaml"
        return pytester.runpytest_inprocess(*PLAIN, str(path), f"--replay={history}", "-rx", *args)

    return result


def true_tokens(outcome: Event) -> None:
    """The tokens of the logprobs are those of the reply."""
    if outcome.get("logprob_tokens"):
        outcome["logprob_tokens"] = list(outcome["text"])


def every_choice(outcome: Event) -> None:
    """The usage counts the tokens of all choices."""
    count = sum(len(choice["token_ids"]) for choice in outcome["choices"]) or len(outcome["token_ids"])
    outcome["completion_tokens"] = outcome["usage"]["completion_tokens"] = count


def last_one_computed(outcome: Event) -> None:
    """No count is of the whole prompt."""
    if outcome["cached"] is not None:
        outcome["cached"] = min(outcome["cached"], outcome["prompt_tokens"] - 1)


def named(name: str) -> str:
    return f"--expectations={FOLDER / 'named' / name}"


KNOWN = [
    ("mlx-lm", "out/logprobs", "", true_tokens, 2),
    ("llama-server-choices", "count/usage-choices", "", every_choice, 1),
    ("rapid-mlx", "adopt/ladder-powers", "", last_one_computed, 1),
]
NAMED = [
    ("mlx-lm", "out/logprobs", "mlx-lm-wide.yaml", 2),
    ("mlx-lm-wide", "foot/private-prefixes", "mlx-lm-wide.yaml", 1),
    ("vllm-seeded", "out/choices-seeded", "vllm-cpu.yaml", 1),
]


@pytest.mark.parametrize(("history", "spec", "file", "items"), [k[:3] + k[4:] for k in KNOWN] + NAMED)
def test_a_recorded_deviation_is_an_expected_failure(
    judge: Judge, history: str, spec: str, file: str, items: int
) -> None:
    result = judge(spec, HERE / f"{history}.jsonl", *([named(file)] if file else []))
    result.assert_outcomes(xfailed=items)
    result.stdout.fnmatch_lines(["XFAIL *known: *"])


@pytest.mark.parametrize(("history", "spec", "file", "items"), NAMED[1:])
def test_what_depends_on_more_than_the_release_fails_where_it_is_not_named(
    judge: Judge, history: str, spec: str, file: str, items: int
) -> None:
    judge(spec, HERE / f"{history}.jsonl").assert_outcomes(failed=items)


@pytest.mark.parametrize(("history", "spec", "file", "mend", "items"), KNOWN)
def test_a_deviation_that_was_mended_fails_and_names_the_entry(
    judge: Judge, tmp_path: Path, history: str, spec: str, file: str, mend: Mend, items: int
) -> None:
    def change(event: Event) -> None:
        if event["event"] == "outcome":
            mend(event["outcome"])

    result = judge(spec, rewritten(HERE / f"{history}.jsonl", tmp_path, change))
    result.assert_outcomes(failed=items)
    result.stdout.fnmatch_lines([f"{load_item(spec)} passes, and *expects fail: good news, delete the entry"])


def load_item(spec: str) -> str:
    """The requirement of a spec's first expectation."""
    return load_spec(HERE / "specs" / f"{spec}.yaml").spec.expect[0].requirement


@pytest.mark.parametrize(("history", "spec", "items"), [(k[0], k[1], k[4]) for k in KNOWN])
def test_another_release_is_no_longer_excused(
    judge: Judge, tmp_path: Path, history: str, spec: str, items: int
) -> None:
    def later(event: Event) -> None:
        if event["event"] == "facts":
            event["facts"]["version"] = "99.0"

    result = judge(spec, rewritten(HERE / f"{history}.jsonl", tmp_path, later))
    # llama-server's entry names no range: the builds measured tell no number.
    result.assert_outcomes(**{"xfailed" if history.startswith("llama") else "failed": items})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_file_is_about_items_that_there_are(path: Path) -> None:
    specs = {one.id: one for one in (load_spec(file).spec for file in spec_files(FOLDER.parent / "specs"))}
    for one in load(path):
        assert one.entry.spec is not None
        assert one.entry.requirement in {e.requirement for e in specs[one.entry.spec].expect}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_entry_holds_some_months_and_no_longer(path: Path) -> None:
    assert all(60 < (one.entry.until - RECORDED).days < 200 for one in load(path))


def test_every_shipped_file_is_told_in_the_documentation() -> None:
    text = (FOLDER.parent / "docs" / "expectations.md").read_text(encoding="utf-8")
    told = {str(path.relative_to(FOLDER)).replace("\\", "/") for path in FILES}
    assert all(f"| `{name}` |" in text for name in told)

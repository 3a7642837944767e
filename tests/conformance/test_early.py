"""A run that ends early says so, and how much it left unjudged; one that ends in order says nothing of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from conformance import backend
from conformance.early import Early, line
from conformance.history import PlannedRequest
from tests.conformance.fakeback import CASE, Back

PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-n0")
REPORTS = ("--report-json=r.json", "--report-html=r.html")
FILES = ("a.yaml", "b.yaml", "c.yaml")


@pytest.fixture(autouse=True)
def back(monkeypatch: pytest.MonkeyPatch) -> Back:
    """No server is ever started by these tests."""
    made = Back()
    monkeypatch.setattr(backend, "Backend", lambda options: made)
    return made


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    for name in FILES:
        (pytester.path / name).write_text(CASE.replace("area/case", f"area/{name[0]}"))
    return pytester.runpytest_inprocess(*PLAIN, *FILES, *REPORTS, *args, no_reraise_ctrlc=True)


def told(pytester: pytest.Pytester) -> Any:
    return json.loads((pytester.path / "r.json").read_text())["interrupted"]


def wrong(request: PlannedRequest) -> dict[str, Any]:
    return {"cached": 99}


def test_after_the_first_failure(pytester: pytest.Pytester, back: Back) -> None:
    back.outcomes = wrong
    result = run(pytester, "-x")
    said = (
        "interrupted (stopping after 1 failures): 2 of 3 items were not judged; nothing here speaks of them"
    )
    result.stdout.fnmatch_lines(["count/1 *fail*", said])
    assert told(pytester) == {"why": "stopping after 1 failures", "not_judged": 2, "items": 3}
    assert said in (pytester.path / "r.html").read_text()


def test_after_an_interrupt(pytester: pytest.Pytester, back: Back) -> None:
    def interrupted(request: PlannedRequest) -> dict[str, Any]:
        if back.events.count("run main") > 1:
            raise KeyboardInterrupt
        return {"cached": 16}

    back.outcomes = interrupted
    result = run(pytester)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["count/1 *pass*", "interrupted (Ctrl-C): 2 of 3 items were not judged; *"])
    assert told(pytester) == {"why": "Ctrl-C", "not_judged": 2, "items": 3}


@pytest.mark.parametrize("args", [(), ("--maxfail=3",), ("-k", "a.yaml"), ("--dry-run",)])
def test_a_run_that_ends_in_order_says_nothing(
    pytester: pytest.Pytester, back: Back, args: tuple[str, ...]
) -> None:
    back.outcomes = wrong
    run(pytester, *args).stdout.no_fnmatch_line("interrupted*")
    assert "--dry-run" in args or told(pytester) is None


def test_a_run_that_was_refused_was_not_interrupted(pytester: pytest.Pytester) -> None:
    result = run(pytester, "-k", "a and n=3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.no_fnmatch_line("interrupted*")


def test_the_tests_of_others_are_none_of_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one():\n    assert 0\n\ndef test_two():\n    pass")
    pytester.runpytest_inprocess(*PLAIN, "-x").stdout.no_fnmatch_line("interrupted*")


def reported(nodeid: str, when: Literal["setup", "call"], outcome: Literal["passed", "skipped"]) -> Any:
    return pytest.TestReport(nodeid, ("a", 1, "a"), {}, outcome, None, when)


def test_workers_collect_the_same_items_and_report_each_once() -> None:
    watched = Early()
    for worker in (None, None):
        watched.pytest_xdist_node_collection_finished(worker, ["s/a.yaml::x@g", "s/b.yaml::x@g", "c.py::x"])
    watched.pytest_runtest_logreport(reported("s/a.yaml::x@g", "setup", "passed"))
    left = watched.ended("x")
    assert left is not None
    assert (left["not_judged"], left["items"]) == (2, 2)
    watched.pytest_runtest_logreport(reported("s/a.yaml::x@g", "call", "passed"))
    watched.pytest_runtest_logreport(reported("s/b.yaml::x@g", "setup", "skipped"))
    assert watched.ended("x") is None


def test_the_line_says_why_and_how_many() -> None:
    assert line({"why": "SIGTERM", "not_judged": 1, "items": 9}).startswith("interrupted (SIGTERM): 1 of 9 ")


def test_a_server_that_is_gone_leaves_the_rest_unjudged(pytester: pytest.Pytester, back: Back) -> None:
    back.open_error, back.errors = OSError("nobody there"), (OSError,)
    run(pytester).stdout.fnmatch_lines(["interrupted (no target: nobody there): 2 of 3 items *"])
    assert Path("r.json").exists()

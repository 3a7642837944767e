"""`--dry-run` against a server: what it says, and that the server gets nothing but GET."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance import backend, dryrun
from conformance.launch import free_port
from tests.conformance.fakeback import CASE
from tests.conformance.fakeserver import Handler, fake_server

LOADED = (backend, dryrun)
"""Imported before any inner run, which forgets the modules that it was the first to import."""
PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
ONE_ARM = CASE.replace("arms:\n  cold: {serve: {profile: cold}}\n", "").replace("4B", "40")


@pytest.fixture
def run(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    (pytester.path / "case.yaml").write_text(ONE_ARM)
    return lambda *args: pytester.runpytest_inprocess(*PLAIN, "case.yaml", "--dry-run", *args)


@pytest.fixture
def posts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Routes that were posted to."""
    found: list[str] = []
    monkeypatch.setattr(Handler, "do_POST", lambda self: found.append(self.path))
    return found


def test_nothing_but_gets_is_sent(
    run: Callable[..., pytest.RunResult], posts: list[str], pytester: pytest.Pytester
) -> None:
    with fake_server() as server:
        result = run("--endpoint", server.url, "--min-judged", "adopt/1")
    assert posts == []
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "supposed, not probed: OpenAI-compatible server*",
            "area/case: 8 requests, about * prompt tokens, at most 128 generated",
            "in all: 8 requests*; nothing was sent",
        ]
    )
    assert not list(pytester.path.glob(".conformance/*"))


def test_what_only_a_run_measures_is_said_as_that(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    (pytester.path / "case.yaml").write_text(ONE_ARM.replace("tokens: 40", "tokens: 4G"))
    with fake_server() as server:
        result = run("--endpoint", server.url)
    result.stdout.fnmatch_lines(
        [
            "area/case: what it sends is known during the run, where G is measured",
            "in all: 0 requests*, not counting 1 that need G; nothing was sent",
        ]
    )


def test_the_same_run_without_it_does_send(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    with fake_server() as server:
        pytester.runpytest_inprocess(*PLAIN, "case.yaml", "--endpoint", server.url)
        assert len(server.state.seen) > 8


def test_without_a_server_it_is_no_success(run: Callable[..., pytest.RunResult]) -> None:
    result = run("--endpoint", f"http://127.0.0.1:{free_port()}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*no target: nothing answers at*"])


def test_a_case_that_needs_another_server_cannot_run_on_an_endpoint(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    (pytester.path / "case.yaml").write_text(CASE)
    with fake_server() as server:
        result = run("--endpoint", server.url)
    result.stdout.fnmatch_lines(["area/case: cannot run: *"])

"""The plugin refuses what makes no sense, frames a run, and ends one that judged too little non-zero."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance import backend, collect, plugin
from conformance.plugin import Announcer
from conformance.session import Options
from conformance.target import TargetOptions
from tests.conformance.fakeback import CASE, Back, Broken

PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")


@pytest.fixture(autouse=True)
def back(monkeypatch: pytest.MonkeyPatch) -> Back:
    """No server is ever started by these tests."""
    made = Back()
    monkeypatch.setattr(backend, "Backend", lambda options, progress: made)
    return made


@pytest.fixture
def run(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Run pytest on one case that passes."""
    (pytester.path / "case.yaml").write_text(CASE)

    def result(*args: str, on: str = "case.yaml") -> pytest.RunResult:
        return pytester.runpytest_inprocess(*PLAIN, on, *args)

    return result


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--endpoint", "http://x", "--serve", "y"], "--endpoint and --serve: one run has one target"),
        (["--endpoint", "http://x", "--fault", "f"], "--fault is for the bundled engine, not for --endpoint"),
        (["--serve", "y", "--engine-args=-x"], "--engine-args is for the bundled engine, not for --serve"),
        (
            ["--endpoint", "http://x", "--snapshot-update"],
            "--snapshot-update with --endpoint needs --golden NAME",
        ),
        (
            ["--serve", "y", "--snapshot-update-new-only"],
            "--snapshot-update with --serve needs --golden NAME",
        ),
        (["--replay", "gone.jsonl"], "gone.jsonl: cannot be read as a history"),
        (["--replay", "case.yaml"], "case.yaml:1: not an event of a history"),
        (["--request-timeout", "soon"], "--request-timeout soon: a number of seconds above 0"),
        (["--request-timeout", "-1"], "--request-timeout -1: a number of seconds above 0"),
        (["--engine-args", "'"], '--engine-args "\'": No closing quotation'),
        (["--allow", "anything"], "--allow anything: disconnect or reset"),
        (["--faults", "none_such"], "--faults none_such: all, or one of consume_on_adopt"),
        (["--faults", ","], "--faults ',': all, or one of"),
        (["--faults", "all", "--endpoint", "http://x"], "--faults runs on the bundled engine"),
        (["--faults", "all", "--fault", "leak_ref_on_abort"], "drop --fault"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    run: Callable[..., pytest.RunResult], args: list[str], message: str
) -> None:
    result = run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert any(message in line for line in result.errlines), result.errlines
    result.stdout.no_fnmatch_line("*Traceback*")


def test_updating_goldens_of_a_named_endpoint_is_allowed(run: Callable[..., pytest.RunResult]) -> None:
    assert run("--endpoint", "http://x", "--golden", "mine", "--snapshot-update").ret == pytest.ExitCode.OK


def test_a_bad_scale_in_the_environment_is_named(
    run: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONFORMANCE_SCALE", "big")
    result = run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "CONFORMANCE_SCALE=big: full or ci" in result.stderr.str()


def test_help_shows_the_options_in_a_group(run: Callable[..., pytest.RunResult]) -> None:
    run("--help").stdout.fnmatch_lines(
        ["prefix-cache conformance*:", "*--endpoint*URL*", "*--scale*{full,ci}*"]
    )


def test_a_run_is_framed_by_target_facts_and_table(run: Callable[..., pytest.RunResult]) -> None:
    result = run("--scale", "ci", "--history", "h.jsonl")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "conformance: the bundled engine · scale ci · history h.jsonl",
            "conformance: 1 spec files",
            "fake · tiny · B 8 G 8 *",
            "requirement*verdict*",
            "count/1 *MUST *pass *1 pass*",
            "judge again without a server: --replay=h.jsonl",
        ]
    )


def test_a_replay_says_so_and_gives_the_same_outcome(
    run: Callable[..., pytest.RunResult], back: Back
) -> None:
    run("--history", "h.jsonl")
    back.open_error = AssertionError("a replay contacts nothing")
    result = run("--replay", "h.jsonl")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["conformance: replay of h.jsonl · scale full"])


def test_a_run_without_specs_sees_nothing_of_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it():\n    pass")
    result = pytester.runpytest_inprocess(*PLAIN)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("conformance:*")
    result.stdout.no_fnmatch_line("*conformance ===*")


def test_an_unreachable_target_stops_the_run_after_one_failure(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester, back: Back
) -> None:
    back.open_error = Broken("nothing answers at http://127.0.0.1:9")
    (pytester.path / "other.yaml").write_text(CASE.replace("area/case", "area/other"))
    result = run("other.yaml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no target: nothing answers at http://127.0.0.1:9*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_requirement_that_was_asked_for_and_not_judged_ends_non_zero(
    run: Callable[..., pytest.RunResult],
) -> None:
    assert run("--min-judged", "count/1").ret == pytest.ExitCode.OK
    result = run("--min-judged", "count/1, out/1")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["not judged, so this run is not green: out/1"])


def test_a_part_of_the_suite_need_not_judge_what_it_does_not_look_at(
    run: Callable[..., pytest.RunResult],
) -> None:
    assert run().ret == pytest.ExitCode.OK


def test_the_whole_suite_must_judge_the_musts(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "SPECS", pytester.path)
    module = str(Path(plugin.__file__).parent / "test_specs.py")
    whole = run(f"--rootdir={pytester.path}", "--noconftest", on=module)
    whole.assert_outcomes(passed=1)
    assert whole.ret == pytest.ExitCode.TESTS_FAILED
    whole.stdout.fnmatch_lines(["not judged, so this run is not green: adopt/1, out/1"])
    part = run(f"--rootdir={pytester.path}", "--noconftest", "-k", "case", on=module)
    assert part.ret == pytest.ExitCode.OK


def read(pytester: pytest.Pytester, *args: str) -> tuple[Options, TargetOptions]:
    config = pytester.parseconfigure(*PLAIN, *args)
    return plugin._options(config), plugin._target(config)


def test_defaults(pytester: pytest.Pytester) -> None:
    options, target = read(pytester)
    assert (options.how, options.scale, options.replay, options.golden) == ("engine", "full", (), None)
    assert (options.should, options.allow_inconclusive) == (False, False)
    assert options.history.parent.name == ".conformance"
    assert (target.how, target.engine_args, target.fault, target.timeout) == ("engine", (), None, 300.0)


def test_options_reach_session_and_target(pytester: pytest.Pytester) -> None:
    args = ["--engine-args", "--blocks 64", "--fault", "f", "--request-timeout", "7", "--should"]
    options, target = read(pytester, *args, "--allow-inconclusive", "--golden", "g", "--history", "h.jsonl")
    assert (options.should, options.allow_inconclusive, options.golden) == (True, True, "g")
    assert options.history == Path("h.jsonl")
    assert (target.engine_args, target.fault, target.timeout) == (("--blocks", "64"), "f", 7.0)


def test_an_endpoint_is_where_the_lines_to_paste_point(pytester: pytest.Pytester) -> None:
    options, target = read(pytester, "--endpoint", "http://host:1")
    assert (options.how, options.url, target.how, target.url) == (
        "endpoint",
        "http://host:1",
        "endpoint",
        "http://host:1",
    )


def test_a_command_to_serve(pytester: pytest.Pytester) -> None:
    options, target = read(pytester, "--serve", "server --port {port}")
    assert (options.how, target.how, target.command) == ("serve", "serve", "server --port {port}")


def test_the_environment_stands_in_for_options(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONFORMANCE_ENDPOINT", "http://env:1")
    monkeypatch.setenv("CONFORMANCE_SHOULD", "1")
    options, target = read(pytester)
    assert (options.how, options.should, target.url) == ("endpoint", True, "http://env:1")


def test_the_command_line_goes_before_the_environment(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONFORMANCE_ENDPOINT", "http://env:1")
    options, target = read(pytester, "--serve", "server --port {port}")
    assert (options.how, target.how) == ("serve", "serve")


@pytest.mark.parametrize(
    ("args", "scale"),
    [
        ([], "full"),
        (["-m", "quick"], "ci"),
        (["-m", "quick", "--scale", "full"], "full"),
        (["--scale", "ci"], "ci"),
    ],
)
def test_scale(pytester: pytest.Pytester, args: list[str], scale: str) -> None:
    assert read(pytester, *args)[0].scale == scale


def test_xdist_keeps_workloads_together(pytester: pytest.Pytester) -> None:
    assert pytester.parseconfigure(*PLAIN, "-n2", "--dist", "load").option.dist == "loadgroup"
    assert pytester.parseconfigure(*PLAIN, "-n2", "--dist", "loadscope").option.dist == "loadscope"


def test_each_xdist_worker_writes_a_history_of_its_own(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure(*PLAIN, "--history", "h.jsonl")
    config.workerinput = {"workerid": "gw1"}  # type: ignore[attr-defined]
    assert plugin._options(config).history == Path("h-gw1.jsonl")


class Terminal:
    """Stands for pytest's reporter."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, text: str, flush: bool) -> None:
        self.written.append(text)


def announced(monkeypatch: pytest.MonkeyPatch, config: Any, is_terminal: bool) -> list[str]:
    terminal = Terminal()
    plugins = {"terminalreporter": terminal, "capturemanager": None}
    monkeypatch.setattr(config.pluginmanager, "getplugin", plugins.get)
    monkeypatch.setattr("sys.__stderr__", type("Stream", (), {"isatty": lambda self: is_terminal})())
    announcer = Announcer(config)
    announcer.tell("facts")
    announcer.progress("half")
    return terminal.written


def test_progress_replaces_itself_on_a_terminal(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert announced(monkeypatch, pytester.parseconfigure(*PLAIN), True) == ["\nfacts\n", "\r\x1b[Khalf"]


def test_progress_is_silent_in_a_pipe(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    assert announced(monkeypatch, pytester.parseconfigure(*PLAIN), False) == ["\nfacts\n"]


def test_a_worker_says_nothing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytester.parseconfigure(*PLAIN)
    config.workerinput = {"workerid": "gw0"}  # type: ignore[attr-defined]
    assert announced(monkeypatch, config, True) == []

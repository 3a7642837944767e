"""The plugin refuses what makes no sense, frames a run, and ends one that judged too little non-zero."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from conformance import backend, baseline, baselining, collect, options, plugin
from conformance.faults import FAULT_TIMEOUT
from conformance.report.progress import Announcer
from conformance.session import Options
from conformance.target import TargetOptions
from tests.conformance.fakeback import CASE, Back, Broken
from tests.conformance.fakeserver import fake_server

PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")


@pytest.fixture(autouse=True)
def back(monkeypatch: pytest.MonkeyPatch) -> Back:
    """No server is ever started by these tests."""
    made = Back()
    monkeypatch.setattr(backend, "Backend", lambda options: made)
    return made


@pytest.fixture
def run(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Run pytest on one case that passes."""
    (pytester.path / "case.yaml").write_text(CASE)

    def result(*args: str, on: str = "case.yaml", plugins: Sequence[object] = ()) -> pytest.RunResult:
        return pytester.runpytest_inprocess(*PLAIN, on, *args, plugins=plugins)

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
        (["--serve", "y {port}", "--margin", "0"], "--margin 0: a number above 0"),
        (["--margin", "0.001"], "--margin is for a server of yours: say --endpoint URL or --serve CMD too"),
        (["--serve", "y {port}", "--chunk", "0"], "--chunk 0: a whole number from 1 on"),
        (["--chunk", "512"], "--chunk is for a server of yours: say --endpoint URL or --serve CMD too"),
        (["--margin="], "--margin: empty; expected a number"),
        (["--engine-args", "'"], '--engine-args "\'": No closing quotation'),
        (["--allow", "anything"], "--allow anything: expected some of churn, disconnect, reset"),
        (["--dry-run", "--replay", "h.jsonl"], "--dry-run runs nothing: drop --replay"),
        (["--dry-run", "-n2"], "--dry-run runs nothing: drop -n"),
        (["--model", "m"], "--model is for a server of yours: say --endpoint URL or --serve CMD too"),
        (["--insecure"], "--insecure is for a server of yours"),
        (["--endpoint", "http://x", "--header", "X-A"], "--header X-A: expected HEADER=VARIABLE"),
        (["--endpoint", "http://x", "--header", "X-A=UNSET_HERE"], "UNSET_HERE is not set to one line"),
        (["--endpoint", "http://x", "--cacert", "gone.pem"], "--cacert gone.pem: No such file"),
        (["--endpoint", "http://x", "--cacert", "case.yaml"], "--cacert case.yaml: no certificates"),
        (["--endpoint", "http://x", "--cacert", "case.yaml", "--insecure"], "--insecure and --cacert"),
        (
            ["--faults", "none_such"],
            "--faults none_such: no fault of that name; `python -m engine faults` lists them",
        ),
        (["--faults", ","], "--faults ',': no fault of that name"),
        (["--faults", "all", "--endpoint", "http://x"], "--faults runs on the bundled engine"),
        (["--faults", "all", "--fault", "leak_ref_on_abort"], "drop --fault"),
        (["--endpoint="], "--endpoint: empty; expected a URL"),
        (["--serve= "], "--serve: empty; expected a command that holds {port}"),
        (["--replay="], "--replay: empty; expected a file"),
        (["--golden="], "--golden: empty; expected a name"),
        (["--request-timeout="], "--request-timeout: empty; expected a number of seconds"),
        (["--min-judged="], "--min-judged: empty; expected words with a comma between"),
        (["--min-judged=,"], "--min-judged ',': expected ids such as adopt/1,out/1"),
        (["--min-judged=nope/1"], "--min-judged: there is no requirement 'nope/1'"),
        (["--fault", "none_such"], "--fault none_such: no fault of that name"),
        (["--fault", "consume_on_adapt"], "did you mean consume_on_adopt"),
        (["--fault", "all"], "--fault all: an engine has one fault"),
        (["--endpoint=foo"], "--endpoint: 'foo' is no address of a server: expected http://HOST:PORT"),
        (["--serve", "server --port 8000"], "--serve: the command must say where the port goes"),
        (["--serve", "server '{port}"], "--serve: cannot read the command"),
        (["--history=."], "--history .: a directory; expected a file to write"),
        (["--history=case.yaml/h.jsonl"], "case.yaml is no directory"),
        (
            ["--endpoint", "http://x", "--golden=../x"],
            "--golden ../x: the golden name '../x' may hold only a-z,",
        ),
        (["--endpoint", "http://x", "--golden=.."], "--golden ..: the golden name '..' may hold only a-z,"),
        (["--endpoint", "http://x", "--golden=Mine"], "it is no path. In golden/ there is: tiny"),
        (["--golden=baselines"], "the golden name 'baselines' is that of the recorded footprints"),
        (["--pid", "1"], "--pid is for --endpoint URL"),
        (["--endpoint", "http://x", "--pid", "me"], "--pid me: expected a process id"),
        (["--endpoint", "http://x", "--pid", "0"], "--pid 0: expected a process id"),
        (["--endpoint", "http://x", "--pid", "99999999"], "--pid 99999999: there is no process 99999999"),
        (["--baseline", "none-such"], "--baseline: no baseline 'none-such'"),
        (["--baseline", "None/such"], "--baseline: 'None/such': expected a name"),
        (["--baseline-any-machine"], "--baseline-any-machine: with which baseline?"),
        (["--record-baseline", "A"], "--record-baseline 'A': expected a name"),
        (["--record-baseline", "a", "--endpoint", "http://x"], "does nothing else: drop --endpoint"),
        (["--record-baseline", "a", "--dry-run"], "does nothing else: drop --dry-run"),
        (["--record-baseline", "a", "-n2"], "does nothing else: drop -n"),
        (["-n2", "--dist=worksteal"], "--dist worksteal: a workload stays on one worker"),
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


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ENDPOINT", "a URL"), ("SCALE", "full or ci"), ("HISTORY", "a file")],
)
def test_an_empty_variable_is_refused_like_an_empty_option(
    run: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    monkeypatch.setenv(f"CONFORMANCE_{name}", "")
    result = run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"CONFORMANCE_{name}: empty; expected {expected}" in result.stderr.str()


def test_no_flags_and_no_permissions_may_be_said(run: Callable[..., pytest.RunResult]) -> None:
    assert run("--engine-args=", "--allow=").ret == pytest.ExitCode.OK


def test_a_variable_that_is_no_option_is_told_once(
    run: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONFORMANCE_ENDPIONT", "http://x")
    monkeypatch.setenv("CONFORMANCE_API_KEY", "k")
    told = [line for line in run().outlines if line.startswith("conformance: CONFORMANCE_")]
    wanted = "CONFORMANCE_ENDPIONT is no option and is ignored; did you mean CONFORMANCE_ENDPOINT?"
    assert told == [f"conformance: {wanted}"]


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


def test_a_replay_names_the_replayed_file_once(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    run("--history", "h.jsonl")
    (pytester.path / "other.yaml").write_text(CASE.replace("area/case", "area/other"))
    lines = run("other.yaml", "--replay", "h.jsonl").outlines
    assert [line for line in lines if "judge again" in line] == [
        "judge again without a server: --replay=h.jsonl"
    ]


def test_a_run_without_specs_sees_nothing_of_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it():\n    pass")
    result = pytester.runpytest_inprocess(*PLAIN)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("conformance:*")
    result.stdout.no_fnmatch_line("*conformance ===*")


def test_a_recording_run_judges_nothing(
    run: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselining, "recorded", lambda session, items, name: [f"{len(items)} items, {name}"])
    result = run("--record-baseline", "mine", "--min-judged", "adopt/1")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["1 items, mine"])


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
    return options.options_of(config), options.target_of(config, print)


def test_defaults(pytester: pytest.Pytester) -> None:
    options, target = read(pytester)
    assert (options.how, options.scale, options.replay, options.golden) == ("engine", "full", (), None)
    assert (options.should, options.allow_inconclusive) == (False, False)
    assert options.history.parent.name == ".conformance"
    assert (target.how, target.engine_args, target.fault, target.timeout) == ("engine", (), None, 300.0)


def test_a_baseline_gives_the_scenarios_fresh_processes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(baseline, "FOLDER", tmp_path)
    told = baseline.Baseline(server="x", scale="ci", machine={}, noise=1, repeats={}, scenarios={})
    baseline.write(tmp_path, "mine", told)
    options, _ = read(pytester, "--baseline", "mine", "--baseline-any-machine", "--scale", "ci")
    assert options.baseline == baseline.Comparison(name="mine", recorded=told, scale="ci", any_machine=True)
    assert options.fresh == set(baseline.SCENARIOS)
    assert read(pytester)[0].fresh == set()
    assert read(pytester, "--record-baseline", "mine")[0].fresh == set(baseline.SCENARIOS)


def test_the_process_of_an_endpoint_reaches_the_target(pytester: pytest.Pytester) -> None:
    _, target = read(pytester, "--endpoint", "http://x", "--pid", str(os.getpid()))
    assert target.pid == os.getpid()


def test_options_reach_session_and_target(pytester: pytest.Pytester) -> None:
    args = [
        "--engine-args",
        "--blocks 64",
        "--fault",
        "leak_ref_on_abort",
        "--request-timeout",
        "7",
        "--should",
    ]
    options, target = read(pytester, *args, "--allow-inconclusive", "--golden", "g", "--history", "h.jsonl")
    assert (options.should, options.allow_inconclusive, options.golden) == (True, True, "g")
    assert options.history == Path("h.jsonl")
    assert (target.engine_args, target.fault, target.timeout) == (
        ("--blocks", "64"),
        "leak_ref_on_abort",
        7.0,
    )


def test_an_engine_with_a_fault_is_waited_for_less_long(pytester: pytest.Pytester) -> None:
    assert read(pytester, "--fault", "hold_and_wait")[1].timeout == FAULT_TIMEOUT
    assert read(pytester, "--fault", "hold_and_wait", "--request-timeout", "60")[1].timeout == 60.0


def test_access_options_reach_the_target(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_TOKEN", " s3cret ")
    args = ["--endpoint", "https://x", "--model", "m", "--allow", "churn", "--header", "X-Team=TEAM_TOKEN"]
    _, target = read(pytester, *args, "--insecure")
    assert (target.model, target.allow, target.verify) == ("m", frozenset({"churn"}), False)
    assert target.extra == {"X-Team": "s3cret"}
    assert "s3cret" not in repr(target)


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


MORE = "  - counted: {of: eight, id: two}\n  - counted: {of: eight, id: three}\n"


def workers(result: pytest.RunResult) -> dict[str, set[str]]:
    """Which workers ran items of each file."""
    seen: dict[str, set[str]] = {}
    for line in result.outlines:
        if found := re.match(r"\[(gw\d)\].* (\w+\.yaml)::", line):
            seen.setdefault(found[2], set()).add(found[1])
    return seen


def test_xdist_keeps_workloads_together(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    for name in ("case", "other"):
        (pytester.path / f"{name}.yaml").write_text(CASE.replace("area/case", f"area/{name}") + MORE)
    run("other.yaml", "--history=h.jsonl")
    spread = pytester.runpytest_subprocess(*PLAIN, "-n2", "-v", "case.yaml", "other.yaml", "--replay=h.jsonl")
    spread.assert_outcomes(passed=6)
    ran = workers(spread)
    assert {name: len(seen) for name, seen in ran.items()} == {"case.yaml": 1, "other.yaml": 1}
    assert ran["case.yaml"] != ran["other.yaml"]


def test_one_endpoint_is_measured_by_one_worker(pytester: pytest.Pytester) -> None:
    for name in ("case", "other"):
        (pytester.path / f"{name}.yaml").write_text(CASE.replace("area/case", f"area/{name}") + MORE)
    with fake_server() as server:
        args = ("-n2", "-v", "--scale=ci", f"--endpoint={server.url}", "case.yaml", "other.yaml")
        ran = workers(pytester.runpytest_subprocess(*PLAIN, *args))
    assert set(ran) == {"case.yaml", "other.yaml"}
    assert len(set().union(*ran.values())) == 1


WAIT = "import os, sys, time; open('pid', 'w').write(str(os.getpid())); time.sleep(300)"


@pytest.fixture
def running(pytester: pytest.Pytester) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Start pytest on a server that never gets ready; gives both once the server runs."""
    (pytester.path / "case.yaml").write_text(CASE)
    serve = shlex.join([sys.executable, "-c", WAIT, "{port}"])
    started: list[subprocess.Popen[str]] = []

    def start(*args: str) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-m", "pytest", *PLAIN, "case.yaml", "--history=h.jsonl", "--serve", serve]
        started.append(
            subprocess.Popen([*command, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        pid = pytester.path / "pid"
        assert until(lambda: pid.exists() and pid.read_text() != "")
        return started[0], int(pid.read_text())

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=WITHIN)


WITHIN = 60.0


def until(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + WITHIN
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_run_ends_its_server_and_its_history(
    running: Callable[..., tuple[subprocess.Popen[str], int]], pytester: pytest.Pytester, number: int
) -> None:
    process, child = running()
    process.send_signal(number)
    process.send_signal(number)  # `timeout` does so too
    output, _ = process.communicate(timeout=WITHIN)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert until(lambda: is_gone(child))
    events = [json.loads(line) for line in (pytester.path / "h.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events[-2:]] == ["trouble", "end"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_killed_run_leaves_no_server(running: Callable[..., tuple[subprocess.Popen[str], int]]) -> None:
    process, child = running()
    process.kill()
    assert until(lambda: is_gone(child))


def test_a_terminated_controller_leaves_no_server_of_its_workers(
    running: Callable[..., tuple[subprocess.Popen[str], int]],
) -> None:
    process, child = running("-n2", "-o", "filterwarnings=error")
    process.terminate()
    output, _ = process.communicate(timeout=WITHIN)
    assert until(lambda: is_gone(child))
    assert (process.returncode, "Traceback" in output) == (pytest.ExitCode.INTERRUPTED, False)


def test_servers_are_closed_before_a_worker_reports_its_end(
    run: Callable[..., pytest.RunResult], back: Back
) -> None:
    class Watch:
        @pytest.hookimpl(trylast=True)
        def pytest_sessionfinish(self) -> None:
            back.events.append("finished")

    assert run(plugins=[Watch()]).ret == pytest.ExitCode.OK
    assert back.events[-2:] == ["close", "finished"]


def test_each_xdist_worker_writes_a_history_of_its_own(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure(*PLAIN, "--history", "h.jsonl")
    config.workerinput = {"workerid": "gw1"}  # type: ignore[attr-defined]
    assert options.options_of(config).history == Path("h-gw1.jsonl")


class Terminal:
    """Stands for pytest's reporter."""

    def __init__(self, isatty: bool) -> None:
        self.written: list[str] = []
        self.isatty = isatty

    def write(self, text: str, flush: bool) -> None:
        self.written.append(text)


@pytest.fixture
def announced(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Announcer, list[str]]]:
    """An announcer on a terminal, in a pipe or on a worker, whose clock shows the times given."""

    def make(*times: float, isatty: bool = False, worker: str = "") -> tuple[Announcer, list[str]]:
        config, terminal, clock = pytester.parseconfigure(*PLAIN), Terminal(isatty), iter(times)
        if worker:
            config.workerinput = {"workerid": worker}  # type: ignore[attr-defined]
        plugins = {"terminalreporter": terminal, "capturemanager": None}
        monkeypatch.setattr(config.pluginmanager, "getplugin", plugins.get)
        return Announcer(config, lambda: next(clock)), terminal.written

    return make


def test_progress_replaces_itself_on_a_terminal(
    announced: Callable[..., tuple[Announcer, list[str]]],
) -> None:
    announcer, written = announced(0.0, 1.0, isatty=True)
    announcer.tell("facts")
    announcer.progress("half")
    announcer.progress("more")
    assert written == ["\nfacts\n", "\r\x1b[Khalf", "\r\x1b[Kmore"]


def test_a_log_gets_a_line_in_twenty_seconds(announced: Callable[..., tuple[Announcer, list[str]]]) -> None:
    #       made, asked, asked + written, asked, asked + written
    announcer, written = announced(0.0, 19.0, 20.0, 20.0, 39.0, 41.0, 41.0)
    for line in ("a", "b", "c", "d"):
        announcer.progress(line)
    assert written == ["\nb\n", "\nd\n"]


def test_a_line_that_stays_is_a_sign_of_life_too(
    announced: Callable[..., tuple[Announcer, list[str]]],
) -> None:
    announcer, written = announced(0.0, 15.0, 30.0)
    announcer.tell("facts")
    announcer.progress("half")
    assert written == ["\nfacts\n"]


def test_a_worker_says_nothing(announced: Callable[..., tuple[Announcer, list[str]]]) -> None:
    announcer, written = announced(0.0, 15.0, isatty=True, worker="gw0")
    announcer.tell("facts")
    announcer.progress("half")
    assert written == []

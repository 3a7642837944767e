"""`--explore` on pytest's command line: what it may stand beside, and how its items end."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance import exploring, kills

MODULE = str(Path(exploring.__file__).parent / "test_specs.py")
Run = Callable[..., pytest.RunResult]
TOLD: dict[str, Any] = {
    "examples": 9, "seconds": 1.5, "statuses": {"pass": 4}, "errors": [], "alarms": [], "flaky": False,
    "file": None, "failed": [], "by": [],
}  # fmt: skip
FAILED = {
    "failed": [{"judge": "counted", "requirement": "count/1", "witness": "too many"}],
    "file": "x.yaml",
    "by": ["count/1", "out/1"],
}


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `--explore 9`; the hunt is replaced by what it would have told."""

    def result(*args: str, told: dict[str, Any] | None = None, said: str | None = None) -> pytest.RunResult:
        out = json.dumps(TOLD | (told or {})) if said is None else ""

        def hunted(command: list[str], **keys: Any) -> subprocess.CompletedProcess[str]:
            if "conformance.explore" not in command:
                return actual(command, **keys)
            if said == "hangs":
                raise subprocess.TimeoutExpired(command, 1.0)
            return subprocess.CompletedProcess(command, 0, out, said or "")

        actual = subprocess.run
        monkeypatch.setattr(subprocess, "run", hunted)
        root = (f"--rootdir={pytester.path}", "--noconftest", "-p", "no:cacheprovider", "-n0")
        return pytester.runpytest_inprocess(*root, MODULE, "--explore", "9", *args)

    return result


def test_a_target_on_which_nothing_failed_passes(run: Run) -> None:
    run().assert_outcomes(passed=1)


def test_a_workload_that_failed_is_shown_with_its_file(run: Run) -> None:
    result = run(told=FAILED)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*workload 9 failed*", "*count/1*counted: too many", "*pytest x.yaml"])


def test_a_target_that_shows_nothing_is_not_green(run: Run) -> None:
    result = run(told={"statuses": {"vacuous": 9}})
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*none of 9 workloads showed anything*"])


def test_a_hunt_that_breaks_or_hangs_fails_with_its_words(run: Run) -> None:
    result = run(said="no such server")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no such server*"])
    run(said="hangs").stdout.fnmatch_lines(["*no end after 840 s*"])


def test_a_fault_must_be_found(run: Run) -> None:
    found = run("--explore-fault", "ignore_salt", told=FAILED)
    found.assert_outcomes(passed=1)
    found.stdout.fnmatch_lines(["ignore_salt *killed *by count/1 after 9 workloads*"])
    missed = run("--explore-fault", "ignore_salt")
    missed.assert_outcomes(failed=1)
    missed.stdout.fnmatch_lines(["*symptom *"])


def test_a_fault_that_nothing_can_show_in_process_is_skipped_with_its_reason(run: Run) -> None:
    missed = run("--explore-fault", "copy_rows_on_adopt", "-rs")
    missed.assert_outcomes(skipped=1)
    missed.stdout.fnmatch_lines(["*SKIPPED*memory of a process alone*"])
    run("--explore-fault", "copy_rows_on_adopt", told=FAILED).assert_outcomes(passed=1)


def test_what_became_of_the_faults_is_written(run: Run, tmp_path: Path) -> None:
    report = tmp_path / "explored.json"
    run("--explore-fault", "ignore_salt", "--report-kills", str(report), told=FAILED)
    assert kills.from_json(report.read_text()) == (
        [],
        [{"fault": "ignore_salt", "examples": 9, "by": ["count/1", "out/1"]}],
    )


def test_a_fault_that_was_missed_is_written_too(run: Run, tmp_path: Path) -> None:
    report = tmp_path / "explored.json"
    run("--explore-fault", "ignore_salt", "--report-kills", str(report))
    assert kills.from_json(report.read_text())[1] == [{"fault": "ignore_salt", "examples": 9, "by": []}]


def test_a_false_alarm_fails_the_item_of_a_fault(run: Run) -> None:
    result = run("--explore-fault", "ignore_salt", told={**FAILED, "alarms": ["counted: wrong"]})
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the healthy engine fails as well*", "*counted: wrong*"])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--faults", "all"], "drop --faults"),
        (["--fault", "ignore_salt"], "drop --fault"),
        (["--endpoint", "http://127.0.0.1:9", "--explore-fault", "ignore_salt"], "bundled engine"),
        (["--explore-fault", "none_such"], "none_such"),
        (["--explore-seed", "x"], "whole number"),
        (["--explore-seconds", "0"], "above 0"),
        (["--report-kills", "k.json"], "faults"),
    ],
)
def test_what_makes_no_sense_beside_it_is_refused(run: Run, args: list[str], says: str) -> None:
    result = run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{says}*"])


def test_how_to_explore_needs_the_number(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("-n0", "--explore-seed", "3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*say --explore N too*"])

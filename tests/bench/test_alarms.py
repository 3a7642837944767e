"""What a run of the quick set said is counted, and a fail of the healthy engine is an alarm."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from bench import alarms

Commands = list[list[str]]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The commands that were run; each leaves a report with one fail where a chunk of 32 is asked for."""
    seen: Commands = []

    def run(command: list[str], limit: float) -> str:
        seen.append(command)
        verdict = "fail" if any("--chunk 32" in word for word in command) else "vacuous"
        items = [{"node": "one", "verdict": "pass"}, {"node": "two", "verdict": verdict}]
        if not any("--block-size 1 " in word for word in command):
            broken = [{"node": "three", "text": "no spec"}] if "--grid 64" in " ".join(command) else []
            report = json.dumps({"items": items, "broken": broken})
            Path(command[command.index("--report-json") + 1]).write_text(report)
        Path(command[command.index("--history") + 1]).write_text("history")
        return "said"

    monkeypatch.setattr(alarms, "said", run)
    return seen


def test_a_run_that_accuses_nothing_is_no_alarm(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert alarms.main(["--only", "plain", "--only", "two workers", "--runs", "3"]) == 0
    assert [command[-2:] == ["-n", "2"] for command in commands] == [False, True, False]
    out = capsys.readouterr().out
    assert "1 pass, 1 vacuous" in out
    assert "vacuous: two" in out
    assert "pass: one" not in out


@pytest.mark.parametrize(("name", "kept"), [("chunk 32", "fail"), ("block 1", "error"), ("grid 64", "error")])
def test_a_fail_is_an_alarm_and_a_run_without_report_or_with_a_broken_spec_too(
    tmp_path: Path, commands: Commands, capsys: pytest.CaptureFixture[str], name: str, kept: str
) -> None:
    assert alarms.main(["--only", name, "--runs", "1", "--keep", str(tmp_path)]) == 1
    folder = tmp_path / f"00-{name.replace(' ', '-')}"
    assert (folder / "output.txt").read_text() == "said"
    assert (folder / "history.jsonl").read_text() == "history"
    assert f"1 {kept}" in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "quick", "scale"), [([], True, "ci"), (["--whole"], False, "full")])
def test_the_quick_set_is_run_or_all_of_it(
    commands: Commands, capsys: pytest.CaptureFixture[str], flags: list[str], quick: bool, scale: str
) -> None:
    alarms.main(["--only", "plain", "--runs", "1", *flags])
    assert ("quick" in commands[0], commands[0][commands[0].index("--scale") + 1]) == (quick, scale)
    assert ("quick set" in capsys.readouterr().out) is quick


def test_a_run_without_end_is_an_alarm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(alarms, "said", Mock(side_effect=subprocess.TimeoutExpired("pytest", 1800)))
    assert alarms.main(["--only", "plain", "--runs", "1"]) == 1
    assert "1 timeout" in capsys.readouterr().out


def test_an_unknown_condition_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert alarms.main(["--only", "nothing"]) == 2
    assert "another client" in capsys.readouterr().err


def test_another_client_is_served_beside_the_run(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(alarms, "_ask", lambda url, seed: asked.append(url))
    assert alarms.main(["--only", "another client", "--runs", "1"]) == 0
    url = commands[0][commands[0].index("--endpoint") + 1]
    assert asked[0] == url


def test_a_busy_machine_is_so_as_long_as_the_run(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(*args: Any, **how: Any) -> subprocess.Popen[bytes]:
        started.append(real(*args, **how))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    assert alarms.main(["--only", "busy machine", "--runs", "1"]) == 0
    assert [child.poll() is not None for child in started] == [True]

"""`kill -9` of the engine amid a burst: error verdicts, a usable history, no hang, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil

from conformance.collect import SPECS

TIMEOUT = 120.0
CASE = SPECS / "adopt" / "warm-burst.yaml"


def pytest_on(case: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(case), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def samples(history: Path, step: str) -> int:
    lines = history.read_text().splitlines() if history.exists() else []
    found = [
        json.loads(line) for line in lines if line.startswith('{"event":"sample"') and line.endswith("}")
    ]
    return sum(event["sample"]["step"] == step for event in found)


def wait_for_burst(history: Path) -> None:
    """Until the step before the burst is over and some readings were taken since."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        if samples(history, "eight") >= 4:
            return
        time.sleep(0.02)
    raise AssertionError("the burst never began")


def kill_engine(run: subprocess.Popen[str]) -> None:
    children = psutil.Process(run.pid).children(recursive=True)
    (engine,) = [child for child in children if "serve" in child.cmdline()]
    engine.kill()


def verdicts(output: str) -> list[str]:
    """The word of each failed item, in order; the reasons name a process and a time."""
    return [line.split(":")[0] for line in output.splitlines() if line.startswith("  verdict")]


def test_a_killed_engine_gives_errors_that_a_replay_repeats(tmp_path: Path) -> None:
    history = tmp_path / "h.jsonl"
    with pytest_on(CASE, "--scale", "full", "--history", str(history)) as run:
        wait_for_burst(history)
        kill_engine(run)
        output, _ = run.communicate(timeout=TIMEOUT)
    assert run.returncode == 1
    assert "SIGKILL" in output
    assert "verdict   error" in output
    assert "Traceback" not in output
    with pytest_on(CASE, f"--replay={history}") as again:
        replayed, _ = again.communicate(timeout=TIMEOUT)
    assert again.returncode == 1
    assert verdicts(replayed) == verdicts(output) != []

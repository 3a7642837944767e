"""Commands that a bench runs end in order, whoever ends them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.client import said

CHILD = """
import pathlib, signal, sys, time
def end(number, frame):
    pathlib.Path(sys.argv[1]).write_text("ended in order")
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""
BENCH = """
import os, runpy, signal, sys, threading
import bench.alarms
from bench.client import said
def main(argv):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    said([sys.executable, "-c", sys.argv[2], sys.argv[3]], 60)
bench.alarms.main = main
sys.argv[0:1] = ["bench"]
runpy.run_module("bench", run_name="__main__")
"""


def test_what_a_command_prints_is_returned() -> None:
    script = "import sys; print('out'); print('err', file=sys.stderr)"
    assert sorted(said([sys.executable, "-u", "-c", script], 60).split()) == ["err", "out"]


def test_a_command_that_takes_too_long_is_ended_in_order(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        said([sys.executable, "-c", CHILD, str(tmp_path / "word")], 3)
    assert (tmp_path / "word").read_text() == "ended in order"


def test_a_bench_that_is_told_to_end_ends_what_it_runs_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BENCH, "alarms", CHILD, str(tmp_path / "word")]
    ended = subprocess.run(command, timeout=60, check=False)
    assert ended.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "word").read_text() == "ended in order"

"""`python -m bench alarms`: the suite on the healthy engine under many conditions; no fail is right.

Knows the conditions (engine flags, workers, another client, a busy machine) and reads the JSON report of each
run. Does not know specs. A fail is a false alarm: the engine is the reference. Vacuous, inconclusive and
unobservable are counted beside it: a condition may keep a case from showing anything, and says so.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import requests

from bench.client import engine, said, say

LIMIT = 1800.0
"""Seconds that one run may take."""
_ACCUSE = ("fail", "error", "timeout")
_QUICK, _WHOLE = ("-m", "quick", "--scale", "ci"), ("--scale", "full")


@dataclass(frozen=True)
class Condition:
    """What is different from a plain run; `traffic` and `burn` go on beside it."""

    name: str
    engine: str = ""
    pytest: tuple[str, ...] = ()
    traffic: bool = False
    burn: bool = False


CONDITIONS = (
    Condition("plain"),
    Condition("two workers", pytest=("-n", "2")),
    Condition("another client", traffic=True),
    Condition("busy machine", burn=True),
    Condition("OpenBLAS", "--blas auto"),
    Condition("block 1", "--block-size 1 --blocks 65536"),
    Condition("block 16", "--block-size 16 --blocks 8192"),
    Condition("block 64", "--block-size 64 --blocks 2048"),
    Condition("chunk 32", "--chunk 32"),
    Condition("chunk 512", "--chunk 512"),
    Condition("grid 64", "--grid 64"),
    Condition("pool 256", "--blocks 256"),
    Condition("pool 16384", "--blocks 16384"),
    Condition("batch 1", "--max-batch 1"),
    Condition("batch 2", "--max-batch 2"),
    Condition("batch 16", "--max-batch 16"),
    Condition("reserve prompt", "--reserve prompt"),
    Condition("dense", "--storage dense"),
    Condition("dense, OpenBLAS", "--storage dense --blas auto"),
    Condition("other weights", "--model-seed 7", pytest=("-k", "not golden")),
)


def main(argv: Sequence[str]) -> int:
    """Status 1 when any run accused the engine of anything."""
    args = _parser().parse_args(argv)
    chosen = [c for c in CONDITIONS if not args.only or c.name in args.only]
    if not chosen:
        print(
            f"no condition is called {', '.join(args.only)}; there are: {', '.join(_names())}",
            file=sys.stderr,
        )
        return 2
    what, which = ("whole suite", _WHOLE) if args.whole else ("quick set", _QUICK)
    keep = Path(args.keep) if args.keep else None
    alarms = sum(_told(chosen[n % len(chosen)], n, which, keep) for n in range(args.runs))
    say(f"runs of the {what}: {args.runs}; false alarms", str(alarms), "0")
    return 1 if alarms else 0


def _parser() -> argparse.ArgumentParser:
    about = (__doc__ or "").partition(": ")[2].partition("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m bench alarms", description=about)
    parser.add_argument("--runs", type=int, default=len(CONDITIONS), help="runs, over the conditions in turn")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help=f"one of: {', '.join(_names())}"
    )
    parser.add_argument(
        "--whole", action="store_true", help="the whole suite at full scale, not the quick set at a small one"
    )
    parser.add_argument(
        "--keep",
        metavar="DIR",
        help="keep output and history of runs that accused the engine, or showed nothing somewhere",
    )
    return parser


def _names() -> list[str]:
    return [condition.name for condition in CONDITIONS]


def _told(condition: Condition, number: int, which: Sequence[str], keep: Path | None) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        text, items = _run(condition, which, Path(folder))
        found, worth = Counter(items.values()), _worth_a_line(items)
        alarms = sum(found[status] for status in _ACCUSE)
        if keep is not None and worth:
            kept = keep / f"{number:02}-{condition.name.replace(' ', '-')}"
            kept.mkdir(parents=True, exist_ok=True)
            (kept / "output.txt").write_text(text)
            for history in Path(folder).glob("*.jsonl"):
                (kept / history.name).write_bytes(history.read_bytes())
    counts = ", ".join(f"{count} {status}" for status, count in sorted(found.items()))
    print(f"  {number:02} {condition.name:<20} {time.monotonic() - began:4.0f} s  {counts}", flush=True)
    for item, status in worth.items():
        print(f"       {status}: {item}", flush=True)
    return alarms


def _worth_a_line(items: Mapping[str, str]) -> dict[str, str]:
    """What accuses the engine, and what showed nothing."""
    return {item: status for item, status in items.items() if status in (*_ACCUSE, "vacuous")}


def _run(condition: Condition, which: Sequence[str], folder: Path) -> tuple[str, dict[str, str]]:
    """Output, and the verdict of each item; a run without a report is an error of its own."""
    report = folder / "report.json"
    with _target(condition) as target, _burning(condition.burn):
        command = [
            sys.executable, "-m", "pytest", "conformance/", *which, "-q", "-p", "no:cacheprovider",
            "--allow-inconclusive", "--report-json", str(report),
            "--history", str(folder / "history.jsonl"), *condition.pytest, *target,
        ]  # fmt: skip
        try:
            text = said(command, LIMIT)
        except subprocess.TimeoutExpired:
            return f"no end within {LIMIT:g} s", {"the run": "timeout"}
    if not report.exists():
        return text, {"the run": "error"}
    found = json.loads(report.read_text())
    broken = {file["node"]: "error" for file in found["broken"]}
    return text, broken | {item["node"]: item["verdict"] for item in found["items"]}


@contextmanager
def _target(condition: Condition) -> Iterator[list[str]]:
    """Options that say what is judged: an engine of the run's own, or one that somebody else uses too."""
    if not condition.traffic:
        yield [f"--engine-args={condition.engine}"] if condition.engine else []
        return
    flags = ("--blas", "builtin", "--test-mode", *condition.engine.split())
    with engine(*flags) as server, _going_on(lambda seed: _ask(server.url, seed)):
        yield ["--endpoint", server.url, "--allow", "churn,reset,disconnect"]


def _ask(url: str, seed: int) -> None:
    """One short unrelated request, and a pause."""
    choose = random.Random(seed)
    body = {"prompt": choose.choices(range(33, 127), k=choose.choice((20, 90, 200))), "max_tokens": 8}
    with suppress(requests.RequestException):  # whether others are served well is not what is measured
        requests.post(f"{url}/v1/completions", json=body, timeout=60)
    time.sleep(choose.random())


@contextmanager
def _burning(wanted: bool) -> Iterator[None]:
    """A process that keeps one core busy; it ends with this one, and by itself after the limit."""
    if not wanted:
        yield
        return
    code = f"import time\nend = time.monotonic() + {LIMIT}\nwhile time.monotonic() < end: pass"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        child.kill()
        child.wait()


@contextmanager
def _going_on(work: Callable[[int], None]) -> Iterator[None]:
    over = threading.Event()

    def loop() -> None:
        seed = 0
        while not over.is_set():
            work(seed := seed + 1)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

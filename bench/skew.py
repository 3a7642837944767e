"""`python -m bench skew`: how close together a burst leaves, and what the client costs while it streams.

Knows the driver, a plan of one burst, and a synthetic server in another process. Does not know specs or
judges. Both figures are of the code that a run of the suite uses: target, driver, recorder, all readings.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import requests

from bench.client import say
from bench.streams import server
from conformance.dialect import Dialect
from conformance.drive import Driver
from conformance.history import Outcome, PlannedRequest
from conformance.planned import Plan, PlannedStep
from conformance.record import Recorder
from conformance.spec import Serve
from conformance.target import Target, TargetOptions

CLIENTS = 64
MOST_SKEW = 0.020
"""Seconds between the first and the last request of a burst, at the server."""
MOST_CPU = 0.35
"""Of one core, while 64 streams give 50 tokens a second each."""
_RATE = 50
_TOGETHER = 0.001
"""Seconds between tokens of one stream that came out of one read."""
_DIALECT = {
    "dialect": "synthetic",
    "name": "synthetic server",
    "order": 1,
    "facts": {"granule": 1},
    "ask": {"logprobs": {"logprobs": 2}},
    "answer": {"ids": "choices[0].token_ids"},
    "stats": [{"get": "/stats", "values": {name: name for name in ("live", "running", "waiting")}}],
}


class Noting(Recorder):
    """A recorder that notes the CPU used when the first outcome is there: the streams are over by then."""

    cpu: float | None = None
    at = 0.0

    def outcome(self, outcome: Outcome) -> None:
        if self.cpu is None:
            self.cpu, self.at = _cpu(), time.monotonic()
        super().outcome(outcome)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench skew", description=(__doc__ or "").split(".")[0])
    parser.add_argument("--bursts", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=4.0, help="of streaming")
    parser.add_argument("--runs", type=int, default=3, help="of streaming")
    arguments = parser.parse_args(argv)
    skew = _skews(arguments.bursts)
    shares = [_share(arguments.seconds, spread) for spread in (False, True) for _ in range(arguments.runs)]
    return 0 if skew <= MOST_SKEW and statistics.median(shares) <= MOST_CPU else 1


def _skews(bursts: int) -> float:
    """The median over bursts of seconds between the first and the last request, as they arrived."""
    with server() as url, _target(url) as target:
        requests.get(f"{url}/arrivals", timeout=10)
        spreads = sorted(_skew(target, number) for number in range(bursts))
    median = statistics.median(spreads)
    say(f"{CLIENTS} requests of a burst arrive within, ms, median", f"{median * 1e3:.1f}", "at most 20")
    say("  the least and the most, ms", f"{spreads[0] * 1e3:.1f}..{spreads[-1] * 1e3:.1f}")
    return median


def _skew(target: Target, number: int) -> float:
    _drive(target, max_tokens=1, number=number)
    arrived = requests.get(f"{target.url}/arrivals", timeout=10).json()
    if len(arrived) != CLIENTS:
        raise RuntimeError(f"{len(arrived)} requests arrived, not {CLIENTS}")
    return float(max(arrived) - min(arrived))


def _share(seconds: float, spread: bool) -> float:
    """CPU of this process over wall time, while all streams run."""
    with server(spread) as url, _target(url) as target:
        start, cpu = time.monotonic(), _cpu()
        seen = _drive(target, max_tokens=int(seconds * _RATE), number=0)
        assert seen.cpu is not None
        share, total = (seen.cpu - cpu) / (seen.at - start), _cpu() - cpu
    how = "one after the other" if spread else "in one step"
    say(f"{CLIENTS} streams of {_RATE} tokens/s, {how}: of a core, %", f"{share * 100:.0f}", "at most 35")
    say("  tokens that were read on their own, %", f"{_singly(seen.workload.outcomes) * 100:.0f}")
    say("  seconds to parse and record them afterwards", f"{total - (seen.cpu - cpu):.2f}")
    return share


def _singly(outcomes: Sequence[Outcome]) -> float:
    """Share of the tokens that were not read together with the one before, which costs less."""
    gaps = [b - a for o in outcomes for a, b in pairwise(o.tokens_at)]
    return sum(gap > _TOGETHER for gap in gaps) / len(gaps)


@contextmanager
def _target(url: str) -> Iterator[Target]:
    options = TargetOptions(how="endpoint", timeout=60.0, api_key=None)
    target = Target(url, options, dialect=Dialect.model_validate(_DIALECT))
    try:
        yield target
    finally:
        target.close()


def _drive(target: Target, max_tokens: int, number: int) -> Noting:
    """One burst as a run performs it; RuntimeError unless all of it went well."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Noting(Path(folder) / "history.jsonl")
        try:
            recorder.header()
            recorder.begin("bench/skew", "", "digest")
            Driver(target, recorder).run(_plan(max_tokens, number))
        finally:
            recorder.close()
    failed = [outcome.error for outcome in recorder.workload.outcomes if not outcome.ok]
    if failed or len(recorder.workload.outcomes) != CLIENTS:
        raise RuntimeError(f"the burst failed: {failed[:1]}")
    return recorder


def _plan(max_tokens: int, number: int) -> Plan:
    requests = tuple(_request(index, max_tokens, number) for index in range(CLIENTS))
    step = PlannedStep("burst", "all", requests, together=True)
    return Plan("bench/skew", "", "digest", Serve(), {}, (step,), frozenset())


def _request(index: int, max_tokens: int, number: int) -> PlannedRequest:
    return PlannedRequest(
        id=f"all[{index}]",
        step="all",
        index=index,
        prompt_ids=None,
        prompt_text=f"{number} {index} " + "word " * 400,
        parts=[2000],
        max_tokens=max_tokens,
        salt="",
        stream=True,
        logprobs=True,
        key=f"{number}-{index}",
    )


def _cpu() -> float:
    """Seconds of user and system time that this process has used, all threads together."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

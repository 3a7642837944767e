"""`python -m bench soak`: thousands of requests, a third of them cancelled somewhere; then all is back.

Knows how to ask in many shapes and how to leave in the middle. Does not know what is right to say: that is
the suite's matter. The engine runs in test mode with a pool that evicts, so that its own audit can be asked.

Bounded: every socket has a timeout, and after `--seconds` no client starts another request.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests

from bench.client import Server, engine, say
from conformance.footprint import measure, tree

BAND = 16 << 20
"""Bytes that the footprint may lie above its baseline: arenas of threads that came and went, not blocks."""

_POOLS = {
    "digest": ("--block-size", "4", "--grid", "4", "--chunk", "16", "--blocks", "256"),
    "tiny": ("--block-size", "32", "--grid", "32", "--chunk", "64", "--blocks", "48"),
}
_SOCKET_SECONDS = 60.0
_SETTLE_SECONDS = 30.0


@dataclass
class Plan:
    """What is left to do, shared by the clients, and how each request went."""

    left: int
    until: float
    cancels: float
    outcomes: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> bool:
        with self.lock:
            self.left -= 1
            return self.left >= 0 and time.monotonic() < self.until

    def note(self, outcome: str) -> None:
        with self.lock:
            self.outcomes[outcome] += 1


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench soak", description=__doc__)
    parser.add_argument("--model", choices=_POOLS, default="digest")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--cancels", type=float, default=0.3, help="share that leaves early (default: 0.3)")
    parser.add_argument("--clients", type=int, default=12, help="at once (default: 12)")
    parser.add_argument("--seconds", type=float, default=900, help="no request starts later (default: 900)")
    parser.add_argument(
        "--engine-args", type=shlex.split, default=[], metavar="ARGS",
        help="more options of the engine in one word, e.g. '--blocks 128 --reserve prompt'",
    )  # fmt: skip
    parser.add_argument(
        "--preemptions", type=int, default=0, metavar="N", help="that there must be at least (default: 0)"
    )
    arguments = parser.parse_args(argv)
    options = (*_POOLS[arguments.model], *arguments.engine_args)
    with engine("--model", arguments.model, "--test-mode", *options) as server:
        base = _baseline(server, arguments)
        start = time.monotonic()
        outcomes = _run(server, arguments, arguments.requests, seed=1)
        say("seconds, requests each second", _rate(time.monotonic() - start, sum(outcomes.values())))
        sound = [*_outcomes(outcomes, arguments), *_rest(server, arguments), *_memory(server, base)]
    return 0 if all(sound) else 1


def _rate(seconds: float, count: int) -> str:
    return f"{seconds:.0f}, {count / seconds:.0f}"


# ---- the load


def _baseline(server: Server, arguments: argparse.Namespace) -> int:
    """Footprint once every kind of request has been seen, with nothing stored."""
    _run(server, arguments, max(100, arguments.requests // 10), seed=0)
    _settled(server)
    return _emptied(server)


def _run(server: Server, arguments: argparse.Namespace, count: int, seed: int) -> Counter[str]:
    plan = Plan(count, time.monotonic() + arguments.seconds, arguments.cancels)
    clients = [
        threading.Thread(target=_client, args=(server, plan, random.Random(f"{seed} {number}")))
        for number in range(arguments.clients)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join(arguments.seconds + 2 * _SOCKET_SECONDS)
    return plan.outcomes


def _client(server: Server, plan: Plan, draw: random.Random) -> None:
    trunks = [server.prompt(400, seed) for seed in range(8)]
    while plan.take():
        body = _body(draw, trunks, server)
        leaves = draw.choice(_DEPARTURES) if draw.random() < plan.cancels else None
        try:
            plan.note(_ask(server, body, leaves, draw))
        except OSError as error:
            plan.note(f"broken: {error}")


def _body(draw: random.Random, trunks: list[list[int]], server: Server) -> dict[str, Any]:
    tail = draw.choices(server.plain, k=draw.randrange(1, 9))
    prompt = draw.choice(trunks)[: draw.randrange(1, 400)] + tail
    return {
        "prompt": prompt, "max_tokens": draw.randrange(33), "n": draw.choice([1, 1, 1, 2, 3]),
        "stream": draw.random() < 0.5, "temperature": draw.choice([0, 1]), "ignore_eos": True,
        "top_p": draw.choice([1, 0.9]),
        "cache_salt": draw.choice(["", "", "other"]),
    }  # fmt: skip


def _ask(
    server: Server, body: dict[str, Any], leaves: Callable[..., None] | None, draw: random.Random
) -> str:
    """One request over its own connection; how it ended."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=_SOCKET_SECONDS)
    try:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        if leaves is not None:
            leaves(connection, draw)
            return f"left {leaves.__name__.strip('_').replace('_', ' ')}"
        reply = connection.getresponse()
        reply.read()
        return f"status {reply.status}"
    finally:
        connection.close()


def _at_once(connection: http.client.HTTPConnection, draw: random.Random) -> None:
    """While the body may not even be parsed."""


def _after_a_while(connection: http.client.HTTPConnection, draw: random.Random) -> None:
    """Queued, in prefill or in decode: as it comes."""
    time.sleep(draw.random() * 0.15)


def _in_the_reply(connection: http.client.HTTPConnection, draw: random.Random) -> None:
    """After some of the reply: the first token of a stream, or a later one."""
    connection.getresponse().read(draw.randrange(1, 2000))


_DEPARTURES: list[Callable[[http.client.HTTPConnection, random.Random], None]] = [
    _at_once,
    _after_a_while,
    _in_the_reply,
]


# ---- what must be back


def _settled(server: Server) -> dict[str, Any]:
    """The statistics once nothing runs or waits, or after a bounded wait."""
    until = time.monotonic() + _SETTLE_SECONDS
    stats = server.stats()
    while stats["running"] + stats["waiting"] and time.monotonic() < until:
        time.sleep(0.05)
        stats = server.stats()
    return stats


def _emptied(server: Server) -> int:
    """Footprint with nothing stored, after the quiet moment in which the engine gives memory back."""
    server.post("/v1/cache/reset", {})
    time.sleep(1.0)
    return measure(tree(server.pid))


def _outcomes(outcomes: Counter[str], arguments: argparse.Namespace) -> list[bool]:
    for name, count in sorted(outcomes.items()):
        say(f"requests: {name}", str(count))
    done = sum(outcomes.values())
    left = sum(count for name, count in outcomes.items() if name.startswith("left"))
    return [
        _must("requests made", done, arguments.requests, done == arguments.requests),
        _must("answered 200 or left early", left + outcomes["status 200"], done),
    ]


def _rest(server: Server, arguments: argparse.Namespace) -> list[bool]:
    stats = _settled(server)
    audit = requests.get(server.url + "/v1/test/integrity", timeout=_SOCKET_SECONDS).json()
    for name in ("cancelled_total", "evictions_lru", "copies", "hits"):
        say(f"engine: {name}", str(stats[name]))
    preempted, wanted = stats["preemptions_total"], arguments.preemptions
    return [
        _must("preemptions", preempted, f"at least {wanted}", preempted >= wanted),
        _must("blocks referenced", stats["paged_blocks_referenced"], 0),
        _must("requests running", stats["running"], 0),
        _must("requests waiting", stats["waiting"], 0),
        _must("index entries", stats["entries"], stats["paged_blocks_cached"]),
        _must("integrity", "ok" if audit["ok"] else audit["problems"][0], "ok"),
    ]


def _memory(server: Server, base: int) -> list[bool]:
    after = _emptied(server)
    stats = server.stats()
    say("footprint before, MiB", f"{base / 2**20:.1f}")
    rise = after - base
    return [
        _must("blocks live after a reset", stats["paged_blocks_live"], 0),
        _must("bytes reserved after a reset", stats["paged_bytes_reserved"], 0),
        _must("footprint after - before, MiB", f"{rise / 2**20:.1f}", f"at most {BAND >> 20}", rise <= BAND),
    ]


def _must(what: str, found: object, wanted: object, holds: bool | None = None) -> bool:
    sound = found == wanted if holds is None else holds
    say(what, str(found), f"{wanted}{'' if sound else '   <-- NOT SO'}")
    return sound

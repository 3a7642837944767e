"""The figures of the seed acceptance, each a ratio of things measured side by side.

    warm      eight requests on one stored prefix: who adopts, what it costs in blocks, equality to cold
    cold      eight on an empty cache: tokens computed over the least possible
    latency   last first token of a cold burst over a single cold request; sharing off over sharing on
    memory    peak footprint of a warm burst on tiny-fat, sharing on and off, fresh processes
    start     seconds from start to the first answer (the only figure that is no ratio)

Prints what was measured and the bound it should meet; never fails, since speed is not a test.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import requests

from bench.client import Peak, Reply, Server, engine, free_port, say

PREFIX, SUFFIX, N = 3700, 24, 8
BLOCK = 32


def main(argv: Sequence[str]) -> int:
    """Run the benches named in `argv`, all when none is."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "only", nargs="*", metavar="NAME", help=f"which of {', '.join(_BENCHES)}; default all"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of each timing; the median counts")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.only) - set(_BENCHES)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(_BENCHES)}")
    for name in arguments.only or _BENCHES:
        print(f"\n{name}")
        _BENCHES[name](arguments.repeat)
    return 0


def prompts(server: Server, seed: int, n: int = N, prefix: int = PREFIX) -> list[list[int]]:
    shared = server.prompt(prefix, seed)
    return [shared + server.prompt(SUFFIX, 1000 * seed + i) for i in range(n)]


def warm(repeat: int) -> None:
    with engine() as server:
        asked = prompts(server, 1)
        server.burst([asked[0][:PREFIX] + server.prompt(16, 7)], "warm", 8)
        server.post("/v1/cache/mark", {})
        before = server.stats()["paged_blocks_live"]
        replies = server.burst(asked, "warm", 128)
        rise = server.stats()["paged_blocks_peak_live"] - before
        solos = [server.burst([prompt], f"solo{i}", 128)[0] for i, prompt in enumerate(asked)]
        say("adopters of 8", str(sum(r.cached > 0 for r in replies)), "8")
        say(
            "cached tokens each",
            ", ".join(sorted({str(r.cached) for r in replies})),
            str(PREFIX // BLOCK * BLOCK),
        )
        say("rise of live blocks at peak", str(rise), f"{_bound(replies) - 2} to {_bound(replies)}")
        say("bit-equal to solo cold (ids and logprobs)", f"{_equal(replies, solos)} of {N}", f"{N} of {N}")


def _bound(replies: list[Reply]) -> int:
    """store/1: blocks that the requests need beyond what they adopted."""
    total = PREFIX + SUFFIX + 128
    return sum(-(-total // BLOCK) - reply.cached // BLOCK for reply in replies)


def _equal(replies: list[Reply], solos: list[Reply]) -> int:
    return sum((a.ids, a.logprobs) == (b.ids, b.logprobs) for a, b in zip(replies, solos, strict=True))


def cold(repeat: int) -> None:
    with engine() as server:
        before = server.stats()["computed_tokens_total"]
        replies = server.burst(prompts(server, 2), "cold", 16)
        computed = server.stats()["computed_tokens_total"] - before
        length = PREFIX + SUFFIX
        least = length + (N - 1) * (length - PREFIX // BLOCK * BLOCK)
        say("adopters of 8", str(sum(r.cached > 0 for r in replies)), "7")
        say("computed / least possible", f"{computed / least:.3f}", "at most 1.02")


def latency(repeat: int) -> None:
    with engine() as shared, engine("--no-sharing") as alone:
        rounds = [_latency_round(shared, alone, seed) for seed in range(10, 10 + repeat)]
    single, burst, unshared = ([r[i] for r in rounds] for i in range(3))
    say("single cold request, first token, s", f"{statistics.median(single):.2f}")
    say("cold burst of 8, last first token / single", _ratio(burst, single), "at most 1.5")
    say("the same with sharing off / with it", _ratio(unshared, burst), "at least 4")


def _latency_round(shared: Server, alone: Server, seed: int) -> tuple[float, float, float]:
    asked = prompts(shared, seed)
    single = shared.burst(asked[:1], f"single{seed}", 1)[0].first
    burst = max(r.first for r in shared.burst(asked, f"burst{seed}", 8))
    unshared = max(r.first for r in alone.burst(asked, f"burst{seed}", 8))
    return single, burst, unshared


def _ratio(over: list[float], under: list[float]) -> str:
    return f"{statistics.median(a / b for a, b in zip(over, under, strict=True)):.2f}"


def memory(repeat: int) -> None:
    peaks = {name: _peak(options) for name, options in _ARMS.items()}
    for name, peak in peaks.items():
        say(f"peak footprint, {name}, MiB", f"{peak / 2**20:.0f}")
    say("sharing / no sharing", f"{peaks['sharing'] / peaks['no sharing']:.2f}", "at most 1")
    say("difference, MiB", f"{(peaks['no sharing'] - peaks['sharing']) / 2**20:.0f}", "at least 150")


_ARMS = {"sharing": (), "no sharing": ("--no-sharing",)}


def _peak(options: tuple[str, ...]) -> int:
    with engine("--model", "tiny-fat", *options) as server:
        asked = prompts(server, 3, prefix=512)
        server.burst([asked[0][:512] + server.prompt(16, 7)], "fat", 4)
        with Peak(server.pid) as peak:
            server.burst(asked, "fat", 16)
        return peak.bytes


def start(repeat: int) -> None:
    seconds = [_start_once() for _ in range(repeat)]
    say("start to first 200 on /health, s (median)", f"{statistics.median(seconds):.2f}", "at most 2")


def _start_once() -> float:
    began = time.perf_counter()
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "engine", "serve", "--port", str(port)], stdout=subprocess.DEVNULL
    )
    try:
        while time.perf_counter() - began < 60 and not _healthy(port):
            time.sleep(0.01)
        return time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(30)


def _healthy(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/health", timeout=1).status_code == 200
    except requests.RequestException:
        return False


_BENCHES: dict[str, Callable[[int], Any]] = {
    "warm": warm,
    "cold": cold,
    "latency": latency,
    "memory": memory,
    "start": start,
}

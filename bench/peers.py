"""`python -m bench peers`: the same bursts against mlx_lm.server, on the same weights and the same BLAS.

Knows how to start another server from a command and to time any OpenAI-compatible stream. Does not know what
the other does inside. Each phase sends the same prompts to both, one server after the other, and gives each
prompt a seed of its own: nothing of an earlier phase is adopted by chance.

    cold N      N prompts with one prefix, nothing stored      warm N      the same again, other suffixes
    sequential  one after the other on a new prefix            distinct N  nothing shared
"""

from __future__ import annotations

import argparse
import ctypes.util
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import requests

from bench.client import TIMEOUT, Peak, free_port

PEER = f"{shlex.quote(str(Path(sys.executable).parent / 'mlx_lm.server'))} --model DIR --port PORT"
OURS = f"{shlex.quote(sys.executable)} -m engine serve --model DIR --port PORT"
_START_SECONDS = 120.0
_ATTEMPTS = 20
_LETTERS = [chr(code) for code in range(33, 97)]
"""Plain single bytes: a token each in the exported tokenizer."""
_COMMON = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work number night point home water room mother area
money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city name
"""
_WORDS = [f" {word}" for word in _COMMON.split()]
"""About a token each in any tokenizer of English."""


@dataclass
class Timed:
    """One reply: seconds from the start of its phase to the first token and to the end."""

    first: float
    ended: float
    cached: int | None


@dataclass
class Phase:
    """What one server did in one phase."""

    replies: list[Timed]
    peak: int
    computed: int | None

    @property
    def wall(self) -> float:
        return max(reply.ended for reply in self.replies)

    @property
    def last_first(self) -> float:
        return max(reply.first for reply in self.replies)


class Peer:
    """A server to time. `model` is what its requests must name."""

    def __init__(self, url: str, pid: int, model: str) -> None:
        self.url, self.pid, self.model = url, pid, model

    def burst(self, prompts: Sequence[str], max_tokens: int, at_once: bool = True) -> Phase:
        before = self.computed()
        with Peak(self.pid) as peak:
            replies = self._burst(prompts, max_tokens) if at_once else self._row(prompts, max_tokens)
        after = self.computed()
        told = None if before is None or after is None else after - before
        return Phase(replies, peak.bytes, told)

    def computed(self) -> int | None:
        """Prompt tokens computed so far, where the server counts them."""
        reply = requests.get(self.url + "/v1/cache/stats", timeout=TIMEOUT)
        return int(reply.json()["computed_tokens_total"]) if reply.ok else None

    def _row(self, prompts: Sequence[str], max_tokens: int) -> list[Timed]:
        """One after the other; first tokens counted from each request's own start, ends from the first's."""
        start = time.perf_counter()
        replies = []
        for prompt in prompts:
            own = self._ask(prompt, max_tokens, time.perf_counter())
            replies.append(Timed(own.first, time.perf_counter() - start, own.cached))
        return replies

    def _burst(self, prompts: Sequence[str], max_tokens: int) -> list[Timed]:
        replies: list[Timed] = []
        together = threading.Barrier(len(prompts) + 1)
        start = time.perf_counter()

        def ask(prompt: str) -> None:
            together.wait(TIMEOUT)
            replies.append(self._insist(prompt, max_tokens, start))

        threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        start = time.perf_counter()
        together.wait(TIMEOUT)
        for thread in threads:
            thread.join(TIMEOUT)
        if len(replies) < len(prompts):
            raise RuntimeError(f"{self.url}: {len(prompts) - len(replies)} of {len(prompts)} never answered")
        return replies

    def _insist(self, prompt: str, max_tokens: int, start: float) -> Timed:
        """Ask again when the connection was reset: a short listen queue drops some of 64 at once. The time
        lost counts, as it does for a client."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._ask(prompt, max_tokens, start)
            except requests.ConnectionError:
                time.sleep(0.05)
        return self._ask(prompt, max_tokens, start)

    def _ask(self, prompt: str, max_tokens: int, start: float) -> Timed:
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
                "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
        first, cached = 0.0, None
        with requests.post(self.url + "/v1/completions", json=body, timeout=TIMEOUT, stream=True) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[6:])
                    first = first or (time.perf_counter() - start if chunk["choices"] else 0.0)
                    cached = _cached(chunk, cached)
        return Timed(first, time.perf_counter() - start, cached)


def _cached(chunk: dict[str, Any], before: int | None) -> int | None:
    details = (chunk.get("usage") or {}).get("prompt_tokens_details") or {}
    found: int | None = details.get("cached_tokens", before)
    return found


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--peer", default=PEER, help="command; DIR and PORT are replaced (default: %(default)s)"
    )
    parser.add_argument("--model", default="tiny", help="tiny, a .gguf file, or a folder that both load")
    parser.add_argument("--prefix", type=int, default=2048, help="shared tokens, about (default: 2048)")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of each reply (default: 16)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 64], help="burst sizes (default: 8 64)")
    parser.add_argument("--repeat", type=int, default=3, help="rounds; medians count (default: 3)")
    parser.add_argument("--blas", default="auto", help="as of the engine, for both (default: auto)")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        folder = _folder(arguments.model, folder)
        blas = _library(arguments.blas)
        print(f"  BLAS of both: {blas or 'what MLX bundles'}")
        sides = {
            name: stack.enter_context(_server(command, folder, blas))
            for name, command in {"engine": OURS, "peer": arguments.peer}.items()
        }
        _compare(sides, arguments)
    return 0


# ---- the servers


def _folder(model: str, spare: str) -> str:
    """Where the weights of both lie: the folder that was named, or `spare` with an export in it."""
    if Path(model).is_dir():
        return model
    command = [sys.executable, "-m", "engine", "model", "export", "--model", model, spare]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return spare


def _library(choice: str) -> str | None:
    """The library that both processes load before anything else; None for MLX's own."""
    if choice == "auto":
        return ctypes.util.find_library("openblas")
    return None if choice == "builtin" else choice


@contextmanager
def _server(command: str, folder: str, blas: str | None) -> Iterator[Peer]:
    port = str(free_port())
    words = [word.replace("DIR", folder).replace("PORT", port) for word in shlex.split(command)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **({"LD_PRELOAD": blas} if blas else {})}
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _await(process, url, command)
            yield Peer(url, process.pid, folder)
        finally:
            process.terminate()
            process.wait(30)


def _await(process: subprocess.Popen[bytes], url: str, command: str) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            if requests.get(url + "/health", timeout=5).ok:
                return
        except requests.RequestException:
            time.sleep(0.1)
    raise SystemExit(f"python -m bench peers: no answer on {url}/health from: {command}")


# ---- the phases


def _compare(sides: dict[str, Peer], arguments: argparse.Namespace) -> None:
    """Every phase on both sides, the one first that was second before; all of it `--repeat` times."""
    for side in sides.values():
        side.burst(_prompts(2, 64, 900, units=_units(arguments)), 4)
    order, found = list(sides), dict[str, list[dict[str, Phase]]]()
    for turn in range(arguments.repeat):
        for name, prompts, at_once in _phases(arguments, 10_000 * turn):
            both = {side: sides[side].burst(prompts, arguments.tokens, at_once) for side in order}
            found.setdefault(name, []).append(both)
            order.reverse()
    for name, rounds in found.items():
        _report(name, rounds)


def _phases(arguments: argparse.Namespace, seed: int) -> Iterator[tuple[str, list[str], bool]]:
    prefix, made = arguments.prefix, partial(_prompts, units=_units(arguments))
    for size in arguments.sizes:
        yield f"cold {size}", made(size, prefix, seed + 10 * size), True
        yield f"warm {size}", made(size, prefix, seed + 10 * size, tails=1), True
    yield "sequential 8", made(8, prefix, seed + 5), False
    yield "distinct 8", [made(1, prefix, seed + 1000 + i)[0] for i in range(8)], True


def _units(arguments: argparse.Namespace) -> list[str]:
    return _LETTERS if arguments.model == "tiny" else _WORDS


def _prompts(count: int, prefix: int, seed: int, tails: int = 0, *, units: Sequence[str]) -> list[str]:
    shared = random.Random(seed).choices(units, k=prefix)
    ends = (random.Random(f"{seed} {tails} {i}").choices(units, k=24) for i in range(count))
    return ["".join([*shared, *end]) for end in ends]


_FIGURES: dict[str, Callable[[Phase], float | None]] = {
    "wall, s": lambda phase: phase.wall,
    "TTFT p50, s": lambda phase: _first(phase, 50),
    "TTFT p99, s": lambda phase: _first(phase, 99),
    "last first token, s": lambda phase: phase.last_first,
    "peak footprint, MiB": lambda phase: phase.peak / 2**20,
    "prompt tokens computed": lambda phase: phase.computed,
    "cached tokens told, sum": lambda phase: _told(phase),
}
_BOUNDS = {
    ("cold 8", "last first token, s"): "at least 4",
    ("distinct 8", "wall, s"): "at least 0.80",
}


def _report(name: str, rounds: list[dict[str, Phase]]) -> None:
    """Medians over the rounds; the ratio is the median of the rounds' ratios."""
    print(f"\n{name:<38} {'engine':>12} {'peer':>12} {'peer / engine':>14}")
    for what, figure in _FIGURES.items():
        pairs = [(figure(both["engine"]), figure(both["peer"])) for both in rounds]
        ratios = [peer / ours for ours, peer in pairs if ours and peer is not None]
        cells = (
            f"{_median([a for a, _ in pairs]):>12} {_median([b for _, b in pairs]):>12} {_median(ratios):>14}"
        )
        bound = _BOUNDS.get((name, what))
        print(f"  {what:<36} {cells}{f'   should be {bound}' if bound else ''}", flush=True)


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.2f}" if known else "-"


def _first(phase: Phase, quantile: int) -> float:
    firsts = sorted(reply.first for reply in phase.replies)
    return median(firsts) if quantile == 50 else firsts[min(len(firsts) - 1, len(firsts) * quantile // 100)]


def _told(phase: Phase) -> int | None:
    told = [reply.cached for reply in phase.replies if reply.cached is not None]
    return sum(told) if told else None

"""`python -m bench index`: what look-up, adoption and a scheduler's step cost, without a model.

Knows how to fill a store with chains of blocks and a runner that computes nothing. Does not know HTTP. Times
are medians.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import mlx.core as mx

from bench.client import say
from engine.kvview import KVView
from engine.messages import Request, SamplingParams
from engine.model import DecodeRow
from engine.sampling import Sampled, Sampler
from engine.scheduler import Scheduler
from engine.sequence import Phase
from engine.sequence import Sequence as Choice
from engine.storage import PagedStorage

BLOCK, CHAIN = 32, 100
VOCAB = 512


class NoRows:
    """A block store without rows."""

    block_size, block_bytes, bytes_reserved = BLOCK, 1, 0

    def view(self, table: list[int]) -> KVView:
        return cast(KVView, None)

    def copy(self, source: int, target: int) -> None:
        """Nothing to copy."""

    def shrink(self, live: object) -> None:
        """Nothing to drop."""


class NoModel:
    """A runner that returns the same logits for everything."""

    grid = BLOCK

    def __init__(self) -> None:
        self._logits = mx.zeros(VOCAB)
        mx.eval(self._logits)

    def prefill(self, view: KVView, tokens: Sequence[int], start: int, stop: int) -> mx.array:
        return self._logits

    def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
        return [self._logits] * len(rows)


class NoSampler:
    """Says the same token without looking."""

    def sample(self, seq: Choice, logits: mx.array) -> Sampled:
        return Sampled(1, None, [])


class NoText:
    """A codec for text that nobody reads."""

    def decode(self, ids: list[int]) -> str:
        return ""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench index", description=__doc__)
    parser.add_argument("--most", type=int, default=10**6, help="stored blocks at most (default: 1000000)")
    most = parser.parse_args(argv).most
    sizes = [10**power for power in range(3, 7) if 10**power <= most]
    costs = {size: _costs(size) for size in sizes}
    for name in ("look-up", "adoption"):
        _table(name, {size: cost[name] for size, cost in costs.items()})
    for batch, waiting in ((1, 0), (8, 0), (8, 56)):
        _steps(batch, waiting)
    return 0


def _table(name: str, costs: dict[int, float]) -> None:
    for size, cost in costs.items():
        say(f"{name} per block, {size} stored, us", f"{cost * 1e6:.2f}")
    say(f"{name}, slowest / fastest size", f"{max(costs.values()) / min(costs.values()):.2f}", "at most 2")


# ---- the store


def _costs(size: int) -> dict[str, float]:
    """Seconds per block of a prompt of `CHAIN` stored blocks."""
    storage, draw = _storage(size + 4 * CHAIN), random.Random(size)
    chains = [_store(storage, draw) for _ in range(size // CHAIN)]
    asked = [_choice([*draw.choice(chains), 0]) for _ in range(100)]
    for seq in asked:
        storage.prepare(seq)
    looked = [_timed(partial(storage.matched, seq)) for seq in asked]
    adopted = [_adoption(storage, seq) for seq in asked]
    assert all(seq.adopted == CHAIN * BLOCK for seq in asked)
    return {"look-up": _typical(looked) / CHAIN, "adoption": _typical(adopted) / CHAIN}


def _adoption(storage: PagedStorage, seq: Choice) -> float:
    """Seconds to match, pin and reserve, and to give all back."""
    return _timed(partial(storage.admit, seq)) + _timed(partial(storage.release, seq))


def _storage(blocks: int) -> PagedStorage:
    return PagedStorage(cast(Any, NoRows()), blocks, granule=BLOCK)


def _store(storage: PagedStorage, draw: random.Random) -> list[int]:
    """A finished request with a prompt of `CHAIN` blocks."""
    tokens = draw.choices(range(VOCAB), k=CHAIN * BLOCK)
    seq = _choice(tokens)
    storage.prepare(seq)
    assert storage.admit(seq)
    storage.extend(seq, len(tokens))
    seq.computed = len(tokens)
    storage.publish(seq)
    storage.release(seq)
    return tokens


def _choice(tokens: list[int]) -> Choice:
    return Choice(Request(f"r{id(tokens)}", tuple(tokens), SamplingParams(max_tokens=1)))


# ---- the scheduler


def _steps(batch: int, waiting: int) -> None:
    """A step while `batch` decode, and one more prefills what `waiting` others wait for."""
    what = f"scheduler step, batch {batch}" + (f", {waiting} waiting" if waiting else "")
    bound = "at most 0.3" if batch == 8 and not waiting else ""
    say(f"{what}, sampler left out, ms", f"{_step_cost(batch, waiting, NoSampler()) * 1e3:.3f}", bound)
    say(f"{what}, greedy sampler, ms", f"{_step_cost(batch, waiting, Sampler()) * 1e3:.3f}")


def _step_cost(batch: int, waiting: int, sampler: object) -> float:
    parts: list[Any] = [NoModel(), _storage(20_000), sampler, NoText(), frozenset()]
    scheduler = Scheduler(*parts, chunk=256, max_batch=batch + 2, adapted=lambda _: cast(Any, None))
    draw = random.Random(batch)
    for number in range(batch):
        _add(scheduler, f"d{number}", draw.choices(range(VOCAB), k=512), 1000)
    while any(seq.phase is not Phase.DECODE for seq in scheduler.waiting + scheduler.running):
        scheduler.step()
    shared = draw.choices(range(VOCAB), k=60_000)
    for number in range(waiting and waiting + 1):
        _add(scheduler, f"w{number}", [*shared, number], 4)
    return _typical([_timed(scheduler.step) for _ in range(200)])


def _add(scheduler: Scheduler, name: str, prompt: list[int], max_tokens: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    scheduler.add(Request(name, tuple(prompt), params), lambda event: None)


def _timed(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _typical(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]

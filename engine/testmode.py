"""What a harness may do to an engine in test mode: hold requests in a phase, let a forward fail.

Knows the seams: a scheduler whose requests stand still in a held phase, a runner whose next forward raises, a
worker that takes both as commands (`POST /v1/test/hold`, `/v1/test/fail`). Does not know HTTP. Outside test
mode none of this is built in; scheduler and worker know nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Rows
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx

from engine.build import Parts
from engine.config import EngineConfig
from engine.kvview import KVView
from engine.messages import RequestError
from engine.model import DecodeRow, Runner
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.worker import Worker

_PAUSE = 0.001
"""Seconds that a step with a hold takes at least: steps go on while requests stand still."""


class HoldingScheduler(Scheduler):
    """Requests in the phase `held` stand still once they have done `after` tokens of it.

    Everything else goes on: cancels land, other phases advance, steps are counted.
    """

    held: str | None = None
    after = 0
    pause = _PAUSE

    def step(self) -> None:
        super().step()
        if self.held is not None:
            time.sleep(self.pause)

    def _admit(self) -> None:
        if self.held != "queued":
            super()._admit()

    def _prefill(self, seq: Sequence, budget: int) -> int:
        return 0 if self._stands(seq, seq.computed - seq.adopted) else super()._prefill(seq, budget)

    def _decode(self, candidates: list[Sequence]) -> None:
        super()._decode([seq for seq in candidates if not self._stands(seq, len(seq.generated) - 1)])

    def _stands(self, seq: Sequence, done: int) -> bool:
        return seq.phase.value == self.held and done >= self.after


class FallibleRunner:
    """A runner that raises once, after `fail_after` more forwards of the kind `failing`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.shape, self.grid = runner.shape, runner.grid
        self.failing: str | None = None
        self.fail_after = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def prefill(self, view: KVView, tokens: Rows[int], start: int, stop: int) -> mx.array:
        self._count("prefill")
        return self._runner.prefill(view, tokens, start, stop)

    def prefill_logits(self, view: KVView, tokens: Rows[int], start: int, stop: int) -> list[mx.array]:
        self._count("prefill")
        return self._runner.prefill_logits(view, tokens, start, stop)

    def decode(self, rows: Rows[DecodeRow]) -> list[mx.array]:
        self._count("decode")
        return self._runner.decode(rows)

    def _count(self, method: str) -> None:
        if method != self.failing:
            return
        self.fail_after -= 1
        if self.fail_after < 0:
            self.failing = None
            raise RuntimeError(f"{method} was asked to fail")


class RehearsalWorker(Worker):
    """A worker in test mode: its engine has the parts above, whatever fault it also has."""

    def __init__(self, config: EngineConfig, parts: Parts | None = None) -> None:
        super().__init__(config, rehearsing(parts or Parts()))

    def _call_hold(self, phase: str | None, after: int) -> dict[str, Any]:
        """Hold requests in "queued", "prefill" or "decode" after so many tokens of it; None lets all go.

        Raises RequestError where one held request would keep all others out.
        """
        if phase in ("prefill", "decode") and self.config.max_batch == 1:
            raise RequestError("--max-batch is 1: a held request would keep all others out")
        scheduler: Any = self._engine.scheduler
        scheduler.held, scheduler.after = phase, after
        return {"held": phase}

    def _call_fail(self, method: str | None, after_steps: int) -> dict[str, Any]:
        """Let a forward, "prefill" or "decode", raise once after so many that succeed; None lets none."""
        runner: Any = self._engine.runner
        runner.failing, runner.fail_after = method, after_steps
        return {"failing": method}


@cache
def rehearsing(parts: Parts) -> Parts:
    """The same parts, with a scheduler that can hold and a runner that can fail."""
    scheduler = type(parts.scheduler.__name__, (HoldingScheduler, parts.scheduler), {})
    return replace(parts, scheduler=scheduler, model=lambda runner: FallibleRunner(parts.model(runner)))


def worker_for(config: EngineConfig, parts: Parts | None = None) -> Worker:
    """The worker that a configuration asks for."""
    return (RehearsalWorker if config.test_mode else Worker)(config, parts)

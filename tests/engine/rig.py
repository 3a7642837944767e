"""An engine without threads or HTTP, stepped by hand, and an oracle that shares none of its storage."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any

import mlx.core as mx

from engine.build import Parts, build
from engine.config import EngineConfig
from engine.kvview import ArrayView
from engine.messages import (
    Adapter,
    Done,
    Event,
    Failed,
    Prompted,
    Request,
    SamplingParams,
    Started,
    Token,
)
from engine.model import DecodeRow, Runner, load
from engine.storage import PagedStorage
from engine.testmode import FallibleRunner, rehearsing

_ids = count()


@dataclass
class Client:
    """What one request was told."""

    request: Request
    events: list[Event] = field(default_factory=list)

    @property
    def cached(self) -> int | None:
        return next((e.cached_tokens for e in self.events if isinstance(e, Started)), None)

    @property
    def done(self) -> bool:
        return any(isinstance(e, Done) for e in self.events)

    @property
    def failed(self) -> Failed | None:
        return next((e for e in self.events if isinstance(e, Failed)), None)

    def ids(self, choice: int = 0) -> list[int]:
        return [e.id for e in self.events if isinstance(e, Token) and e.choice == choice]

    def said(self, choice: int = 0) -> list[Token]:
        """Everything about every generated token."""
        return [e for e in self.events if isinstance(e, Token) and e.choice == choice]

    @property
    def prompted(self) -> tuple[Token, ...]:
        """The prompt's logprobs, told once."""
        (event,) = [e for e in self.events if isinstance(e, Prompted)]
        return event.tokens

    @property
    def text(self) -> str:
        return "".join(getattr(e, "text", "") for e in self.events)


class Rig:
    """A small digest engine: blocks of 4 tokens, tiles of 4, chunks of 8, batches of 4."""

    def __init__(self, parts: Parts | None = None, **settings: Any) -> None:
        small: dict[str, Any] = {
            "model": "digest", "block_size": 4, "grid": 4, "chunk": 8, "max_batch": 4, "blocks": 64
        }  # fmt: skip
        self.config = replace(EngineConfig(), **{**small, **settings})
        self.engine = build(self.config, parts)
        self.scheduler = self.engine.scheduler
        self.plain = list(self.engine.tokenizer.plain_ids())

    @property
    def paged(self) -> PagedStorage:
        assert isinstance(self.engine.storage, PagedStorage)
        return self.engine.storage

    def prompt(self, length: int, seed: int = 0) -> list[int]:
        return random.Random(seed).choices(self.plain, k=length)

    def add(
        self,
        prompt: list[int],
        max_tokens: int = 4,
        salt: str = "",
        adapter: Adapter | None = None,
        **params: Any,
    ) -> Client:
        sampling = SamplingParams(**{"max_tokens": max_tokens, "ignore_eos": True, **params})
        client = Client(Request(f"r{next(_ids)}", tuple(prompt), sampling, salt, adapter=adapter))
        self.scheduler.add(client.request, client.events.append)
        return client

    def steps(self, n: int) -> None:
        for _ in range(n):
            self.scheduler.step()
            assert self.scheduler.problems() == []

    def drain(self, limit: int = 2000) -> None:
        """Step until nothing is left; a schedule that never ends is a failure."""
        self._until_idle(lambda: self.steps(1), limit)

    def finish(self, prompt: list[int], **params: Any) -> Client:
        """Add one and finish it, without looking for inconsistencies, which some faults are."""
        client = self.add(prompt, **params)
        self.drain_unchecked()
        return client

    def drain_unchecked(self, limit: int = 2000) -> None:
        """As `drain`, without looking for inconsistencies."""
        self._until_idle(self.scheduler.step, limit)

    def _until_idle(self, step: Callable[[], None], limit: int) -> None:
        for _ in range(limit):
            if not self.scheduler.busy:
                return
            step()
        raise AssertionError(f"still busy after {limit} steps")

    def run(self, *prompts: list[int], **params: Any) -> list[Client]:
        """Add all at once and finish them."""
        clients = [self.add(prompt, **params) for prompt in prompts]
        self.drain()
        return clients


@cache
def _oracle(grid: int) -> Runner:
    return load("digest", grid=grid)[0]


def expected(prompt: list[int], max_tokens: int, grid: int = 4) -> list[int]:
    """Greedy tokens over one private contiguous array: no pool, no index, no scheduler."""
    runner = _oracle(grid)
    view, tokens = ArrayView(runner.shape), list(prompt)
    logits = runner.prefill(view, tokens, 0, len(tokens))
    for _ in range(max_tokens - 1):
        tokens.append(_best(logits))
        logits = runner.decode([DecodeRow(view, tokens[-1], len(tokens) - 1)])[0]
    return [*tokens[len(prompt) :], _best(logits)]


def _best(logits: mx.array) -> int:
    best: int = mx.argmax(logits).item()  # type: ignore[assignment]
    return best


def broken_prefill(parts: Parts) -> tuple[Rig, list[int]]:
    """An engine of these parts, and a prompt of three chunks and a half of which the second just failed."""
    engine = Rig(rehearsing(parts))
    runner = engine.engine.runner
    assert isinstance(runner, FallibleRunner)
    runner.failing, runner.fail_after = "prefill", 1
    prompt = engine.prompt(29)
    assert engine.finish(prompt).failed is not None
    return engine, prompt

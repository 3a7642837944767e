"""One stored prompt, and heads of it asked for one after another: what is reported as cached for each.

Knows how to make and send such requests. Does not know what the counts mean (`preflight.py`, `calibrate.py`).
Heads come longest first: an engine whose copy is cut down to what the last request used still holds the next.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from conformance.history import PlannedRequest
from conformance.probe import trial
from conformance.vocabulary import Letters

if TYPE_CHECKING:
    from conformance.target import Target

_END = 24
"""Tokens of its own that each head goes on with."""


@dataclass(frozen=True)
class Look:
    """What came back for each head, in the order asked.

    `heads` are lengths in tokens shared with the stored prompt. A hit is at least half of that, as any
    granule that fits into a head gives; less may be the head of a template, which every prompt shares.
    """

    heads: tuple[int, ...]
    cached: tuple[int | None, ...]

    @property
    def hits(self) -> dict[int, int]:
        """Head -> cached tokens."""
        return {head: cached for head, cached in self._known() if 2 * cached >= head}

    @property
    def step(self) -> int | None:
        """The greatest number of which every count is a multiple; None without a hit."""
        return gcd(*self.hits.values()) if self.hits else None

    @property
    def missed(self) -> list[int]:
        """Heads that were not found although a shorter one was: one prompt, found only sometimes."""
        shortest = min(self.hits, default=0)
        return [head for head, _ in self._known() if head not in self.hits and head > shortest > 0]

    def _known(self) -> list[tuple[int, int]]:
        pairs = zip(self.heads, self.cached, strict=True)
        return [(head, cached) for head, cached in pairs if cached is not None]


def look(target: Target, stored: int, heads: Sequence[int], seed: int, settle: float | None = None) -> Look:
    """Stores a prompt of `stored` tokens under a private salt, waits, and asks for its heads in turn.

    `settle` in seconds; None is what the target declares. A request that fails counts as nothing reported.
    """
    whole = trial(target, stored, seed=seed)
    target.send(whole)
    time.sleep(target.facts.settle if settle is None else settle)
    return Look(tuple(heads), tuple(_cached(target, head_of(target, whole, stored, head)) for head in heads))


def _cached(target: Target, plan: PlannedRequest) -> int | None:
    outcome = target.send(plan)
    return outcome.cached if outcome.ok else None


def head_of(target: Target, whole: PlannedRequest, stored: int, tokens: int) -> PlannedRequest:
    """The first `tokens` of a request of `stored` tokens and an end of its own, under the same salt."""
    end = trial(target, _END, seed=tokens)
    if whole.prompt_ids is not None and end.prompt_ids is not None:
        return whole.model_copy(update={"prompt_ids": whole.prompt_ids[:tokens] + end.prompt_ids})
    text = whole.prompt_text or ""
    if isinstance(target.vocabulary, Letters):
        # Every letter is a token: cut at words, all heads would be multiples of a word.
        return whole.model_copy(update={"prompt_text": f"{text[:tokens]}{end.prompt_text}"})
    head = text[: round(tokens * len(text) / stored)].rsplit(" ", 1)[0]
    return whole.model_copy(update={"prompt_text": f"{head} {end.prompt_text}"})


def is_exact(target: Target) -> bool:
    """Whether heads are as long as asked, to the token: ids, or letters that are tokens."""
    return target.facts.takes_ids or target.facts.lcp_slack == 0


def contradicted(declared: int | None, seen: Look, partial: bool, exact: bool) -> str | None:
    """How counts speak against a declared granule; None when they do not.

    Counts finer than it do always, unless parts of a block can be taken over; coarser ones only where the
    lengths of the heads are exact, since they were chosen to show every granule.
    """
    step = seen.step
    if not declared or step is None or partial or step == declared:
        return None
    if step % declared == 0 and not exact:
        return None
    counts = ", ".join(map(str, sorted(set(seen.hits.values()))[:4]))
    return f"granule {declared} declared, but cached counts are multiples of {step} ({counts})"

"""The law of cached counts: what a request may report, given what was sent before it.

Knows prompts, replies, identities and times of one workload, and the arithmetic of the requirements (cap,
law_lo, law_hi). Does not know eviction, which only ever lowers what is stored: judge the lower bound on
workloads that fit the pool. Does not know what was reported: that is compared by the judges. Lengths are
tokens, times seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conformance.history import Facts, Outcome, Workload

Prompt = list[int] | str
STRANGERS = 4
"""Tokens that prompts of other workloads may share where no salt field keeps them apart: their heads are
drawn words, of which two may begin alike, and a target may put tokens of its own before all."""


class LawUnknownError(ValueError):
    """The law cannot be computed for a request: neither ids nor a measured length are known."""


@dataclass(frozen=True)
class Lcp:
    """Longest common prefix with what is stored, tokens; an interval where it is not known exactly.

    `low` counts only what was certainly stored when the request was sent, `high` whatever may have been by
    its end. `source` is the id of the request that stored the certain prefix.
    """

    low: int
    high: int
    source: str | None = None


@dataclass(frozen=True)
class Lawful:
    """The cached counts that one request may report: `low` to `high`, in multiples of `step` tokens."""

    low: int
    high: int
    step: int
    lcp: Lcp
    n: int

    def allows(self, cached: int) -> bool:
        return self.low <= cached <= self.high and cached % self.step == 0

    def __str__(self) -> str:
        return str(self.high) if self.low == self.high else f"{self.low}..{self.high}"

    @property
    def low_arithmetic(self) -> str:
        return self._arithmetic(self.lcp.low, self.low)

    @property
    def high_arithmetic(self) -> str:
        return self._arithmetic(self.lcp.high, self.high)

    def _arithmetic(self, lcp: int, result: int) -> str:
        cap = f"min(LCP {lcp}, n - 1 = {self.n - 1})"
        return (
            f"{cap} = {result}" if self.step == 1 else f"floor({cap} / {self.step}) * {self.step} = {result}"
        )


def lawful(workload: Workload, outcome: Outcome) -> Lawful:
    """law_lo..law_hi of one request. Raises LawUnknownError when its prompt's length is not known."""
    facts = workload.facts[outcome.arm]
    n = prompt_length(outcome)
    lcp = lcp_with_stored(workload, outcome)
    step = 1 if facts.partial_reuse else facts.granule or 1
    # Without a known granule any floor may be lawful, so nothing can be demanded.
    low = _adoptable(facts, lcp.low, n, facts.granule or 1) if facts.granule else 0
    return Lawful(low=low, high=_adoptable(facts, lcp.high, n, step), step=step, lcp=lcp, n=n)


def _adoptable(facts: Facts, lcp: int, n: int, step: int) -> int:
    cap = max(0, min(lcp, n - 1))
    floored = cap // step * step
    return floored if floored >= facts.min_prefix else 0


def prompt_length(outcome: Outcome) -> int:
    """n, tokens: counted from the ids that were sent or rendered, else as the target measured it."""
    ids = _prompt(outcome)
    if isinstance(ids, list):
        return len(ids)
    if outcome.prompt_tokens is None:
        raise LawUnknownError(f"{outcome.id}: no ids were sent and usage.prompt_tokens is absent")
    return outcome.prompt_tokens


def generated_length(outcome: Outcome) -> int:
    """Tokens of the reply, from its ids, else as reported, else 0."""
    if outcome.token_ids is not None:
        return len(outcome.token_ids)
    return outcome.completion_tokens or 0


def lcp_with_stored(workload: Workload, outcome: Outcome) -> Lcp:
    """The interval of the longest common prefix of a request with what its identity has stored."""
    facts = workload.facts[outcome.arm]
    if _prompt(outcome) is None:
        raise LawUnknownError(f"{outcome.id} is a chat, and the target does not tell its rendered ids")
    certain, possible = Lcp(0, 0), 0 if facts.has_salt else STRANGERS
    for other in _same_identity(workload, outcome):
        if other.sent < outcome.ended:
            possible = max(possible, _shared(facts, outcome, other, generated=True)[1])
        if _certainly_stored(workload, other, outcome):
            low = _shared(facts, outcome, other, generated=bool(facts.generated_reusable))[0]
            certain = max(certain, Lcp(low, low, other.id), key=lambda lcp: lcp.low)
    return Lcp(certain.low, max(possible, certain.low), certain.source)


def _same_identity(workload: Workload, outcome: Outcome) -> Iterable[Outcome]:
    salted = workload.facts[outcome.arm].has_salt
    for other in workload.outcomes:
        same = not salted or other.plan.salt == outcome.plan.salt
        same = same and other.plan.adapter == outcome.plan.adapter
        if other is not outcome and other.arm == outcome.arm and same:
            yield other


def _certainly_stored(workload: Workload, other: Outcome, outcome: Outcome) -> bool:
    settled = other.ended + workload.facts[outcome.arm].settle
    return (
        other.ok
        and other.left is None
        and settled <= outcome.sent
        and not _reset_since(workload, other, outcome)
    )


def _reset_since(workload: Workload, other: Outcome, outcome: Outcome) -> bool:
    # A refused reset changed nothing.
    resets = (
        s
        for s in workload.spans
        if s.kind in ("reset", "reload") and s.arm == outcome.arm and s.detail.get("done") is not False
    )
    # What began before a reset publishes nothing after it (reset/4).
    return any(s.end > other.sent and s.start < outcome.sent for s in resets)


def _shared(facts: Facts, outcome: Outcome, other: Outcome, generated: bool) -> tuple[int, int]:
    """Bounds, tokens, on the prefix that `outcome`'s prompt shares with `other`'s prompt and reply."""
    prompt, stored = _prompt(outcome), _prompt(other)
    if isinstance(prompt, str) and isinstance(stored, str):
        return _shared_text(facts, outcome, prompt, stored + other.text if generated else stored)
    if isinstance(prompt, list) and isinstance(stored, list):
        return _shared_ids(prompt, stored, other, generated)
    return 0, 0


def _shared_ids(prompt: list[int], stored: list[int], other: Outcome, generated: bool) -> tuple[int, int]:
    reply = (other.token_ids or []) if generated else []
    high = common_prefix(prompt, stored + reply)
    # The last generated token was never fed back, so its keys and values need not exist.
    low = common_prefix(prompt, stored + reply[:-1])
    if generated and other.token_ids is None and high == len(stored):
        # A reply that came without ids may continue the prompt in any way.
        high = min(len(prompt), high + generated_length(other))
    return low, high


def _shared_text(facts: Facts, outcome: Outcome, prompt: str, stored: str) -> tuple[int, int]:
    shared = common_prefix(prompt, stored)
    return text_tokens(shared, len(prompt), prompt_length(outcome), facts.lcp_slack)


def text_tokens(shared: int, characters: int, n: int, slack: int) -> tuple[int, int]:
    """Bounds on the tokens in the first `shared` of `characters` characters that measured n tokens."""
    if shared == characters:
        return n, n
    share = n * shared / characters
    return max(0, math.floor(share) - slack), min(n, math.ceil(share) + slack)


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the longest common prefix, by bisection over slices: prompts are long and come in pairs."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def shared_prefix(workload: Workload, outcomes: Sequence[Outcome]) -> int:
    """|P|, tokens: what every one of these requests' prompts begins with (the lower bound for texts)."""
    first, facts = outcomes[0], workload.facts[outcomes[0].arm]
    others = outcomes[1:]
    bounds = [_shared(facts, first, other, generated=False)[0] for other in others]
    return min(bounds, default=prompt_length(first))


def _prompt(outcome: Outcome) -> Prompt | None:
    """What was sent; of a chat the ids after the template, which alone say what the cache can match."""
    if outcome.plan.messages:
        return outcome.rendered_ids
    return outcome.plan.prompt_ids if outcome.plan.prompt_ids is not None else outcome.plan.prompt_text

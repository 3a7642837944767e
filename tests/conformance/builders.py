"""Workloads made by hand, for tests of the law and the judges.

Knows the record types and one standard scene with numbers that can be followed on paper: B = G = 32, a
stored prefix of 200 ids, requests of 224 ids (law 192, six blocks), replies of 8 tokens, so 2 blocks of their
own. Does not know what any judge makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conformance.history import Facts, Memory, Outcome, PlannedRequest, Sample, Span, Workload
from conformance.judges import JUDGES
from conformance.verdict import Verdict

MIB = 1 << 20
PREFIX = list(range(1000, 1200))
"""The stored prefix: 200 ids, six whole blocks of 32 and 8 more."""

LAWFUL = 192
"""floor(min(200, 224 - 1) / 32) * 32, by hand."""


def facts(**changes: Any) -> Facts:
    """A target like the bundled engine, but for `changes`."""
    told: dict[str, Any] = {
        "dialect": "engine",
        "name": "conformance-engine",
        "how": "engine",
        "block": 32,
        "granule": 32,
        "chunk": 256,
        "pool_blocks": 4096,
        "sharing": "all",
        "shares_in_flight": True,
        "generated_reusable": True,
        "grade": "bits",
        "takes_ids": True,
        "returns_ids": True,
        "reports_cached": True,
        "has_logprobs": True,
        "has_salt": True,
        "has_reset": True,
        "has_stats": True,
    }
    return Facts.model_validate(told | changes)


def suffix(index: int, count: int = 24) -> list[int]:
    """Ids that no other index begins with."""
    return [10 + index, *range(500, 500 + count - 1)]


def ask(
    step: str, prompt: Sequence[int] | str, index: int | None = None, salt: str = "shared"
) -> PlannedRequest:
    """One planned request; `index` None for a single send."""
    text = isinstance(prompt, str)
    return PlannedRequest(
        id=step if index is None else f"{step}[{index}]",
        step=step,
        index=index or 0,
        prompt_ids=None if isinstance(prompt, str) else list(prompt),
        prompt_text=prompt if isinstance(prompt, str) else None,
        parts=[len(prompt)],
        max_tokens=8,
        salt=salt,
        stream=True,
        logprobs=True,
        key=f"key-{prompt if text else hash(tuple(prompt))}",
    )


def reply(plan: PlannedRequest, sent: float, ended: float, **changes: Any) -> Outcome:
    """A good reply of 8 tokens, sent and ended at these seconds, its first token half way between."""
    tokens = [plan.index * 100 + i for i in range(8)]
    told: dict[str, Any] = {
        "id": plan.id,
        "arm": "main",
        "step": plan.step,
        "index": plan.index,
        "plan": plan,
        "sent": sent,
        "first": (sent + ended) / 2,
        "ended": ended,
        "status": 200,
        "finish_reason": "length",
        "token_ids": tokens,
        "text": " ".join(map(str, tokens)),
        "logprobs": [-0.5] * 8,
        "gaps": [1.0] * 8,
        "logprob_tokens": list(map(str, tokens)),
        "prompt_tokens": len(plan.prompt_ids or []) or 100,
        "completion_tokens": 8,
        "cached": 0,
    }
    return Outcome.model_validate(told | changes)


def answer_to(prompt: Sequence[int]) -> list[int]:
    """Eight ids of a reply that tell prompts apart, whatever step sends them."""
    return [sum(prompt) + i for i in range(8)]


def solo(plan: PlannedRequest, **changes: Any) -> Outcome:
    """The reply that `reply` gives, as a run alone."""
    return reply(plan, 100, 101, arm="solo", **changes)


def sample(at: float, step: str, **values: float) -> Sample:
    return Sample(at=at, arm="main", step=step, values=values)


def memory(at: float, mib: float, step: str, arm: str = "main") -> Memory:
    return Memory(at=at, arm=arm, step=step, bytes=int(mib * MIB))


def span(step: str, start: float, end: float, kind: str = "burst", arm: str = "main", **detail: Any) -> Span:
    return Span(arm=arm, step=step, kind=kind, start=start, end=end, detail=detail)


Event = Outcome | Sample | Memory | Span


def workload(
    *events: Event,
    facts: Facts | None = None,
    arms: Mapping[str, Facts] | None = None,
    solos: Mapping[str, list[Outcome]] | None = None,
    trouble: str | None = None,
) -> Workload:
    """A workload of these events; each kind finds its own list."""
    made = Workload("test/case", "", {"main": facts or _default(), **(arms or {})}, trouble=trouble)
    for event in events:
        _place(made, event)
    made.solos.update(solos or {})
    return made


def _default() -> Facts:
    return facts()


def _place(made: Workload, event: Event) -> None:
    if isinstance(event, Outcome):
        made.outcomes.append(event)
    elif isinstance(event, Sample):
        made.samples.append(event)
    elif isinstance(event, Memory):
        made.memory.append(event)
    else:
        made.spans.append(event)


def seed(**changes: Any) -> Outcome:
    """The request that stored the prefix, ended long before the burst."""
    return reply(ask("seed", [*PREFIX, *suffix(99, 16)]), **({"sent": 0, "ended": 1} | changes))


def burst(
    cached: Sequence[int | None], step: str = "eight", start: float = 10, salt: str = "shared", **changes: Any
) -> list[Outcome]:
    """A request per cached count, in flight together: sent at `start`, first token 1 s, end 2 s later."""
    plans = [ask(step, [*PREFIX, *suffix(i)], i, salt) for i in range(len(cached))]
    return [reply(p, start, start + 2, cached=c, **changes) for p, c in zip(plans, cached, strict=True)]


def series(cached: Sequence[int | None], step: str = "series", start: float = 30) -> list[Outcome]:
    """The same one after another, a second each, with suffixes of their own."""
    plans = [ask(step, [*PREFIX, *suffix(50 + i)], i) for i in range(len(cached))]
    pairs = zip(plans, cached, strict=True)
    return [reply(p, start + i, start + i + 0.9, cached=c) for i, (p, c) in enumerate(pairs)]


def in_turn(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The same requests as a server that takes turns would answer them: nothing overlaps."""
    return [
        o.model_copy(
            update={"sent": o.sent + 5 * i, "first": o.sent + 5 * i + 1, "ended": o.sent + 5 * i + 2}
        )
        for i, o in enumerate(outcomes)
    ]


def judge(name: str, made: Workload, requirement: str | None = None, **args: Any) -> Verdict:
    """Ask a judge as the harness does."""
    found = JUDGES[name]
    return found.run(found.args.model_validate(args), made, requirement or found.requirement)

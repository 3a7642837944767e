"""What a run would send, and what it could not judge, without sending a prompt (`--dry-run`).

Knows plans, and how a workload would look on a server that does all that its facts promise. Does not know
pytest or sockets. Whether an expectation can be judged is asked of its judge: on an imagined workload with
all the evidence that the target can give, a judge that still calls it unobservable lacks something for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from conformance.history import Facts, Memory, Outcome, PlannedRequest, Sample, Span, Workload
from conformance.plan import Plan
from conformance.planned import PlannedStep
from conformance.prompts import ReplyOf, Unobservable, Untold
from conformance.spec import Expect
from conformance.verdict import Status, Verdict

MEASURED = "what it sends is known during the run, where G is measured"


def why_not(reason: Unobservable, facts: Facts) -> str:
    """Why there is no plan yet, which for a granule that a run measures is no reason not to run."""
    needs_granule = isinstance(reason, Untold) and reason.symbol == "G"
    return MEASURED if needs_granule and _measured(facts) else str(reason)


def _measured(facts: Facts) -> bool:
    """Whether a run finds out the granule (`calibrate.granule`), which nobody declares."""
    return facts.granule is None and facts.reports_cached


@dataclass
class Part:
    """One arm of a case: its plan, or why there is none."""

    arm: str
    facts: Facts
    plan: Plan | None = None
    reason: str = ""
    sample: Mapping[str, float] = field(default_factory=dict)
    """A reading of the target's gauges; empty where it has none."""
    has_cold: bool = False
    """Whether a request can be computed alone and cold."""


@dataclass(frozen=True)
class Load:
    """Requests, prompt tokens and the most tokens that may be generated; `open` prompts wait for replies."""

    requests: int = 0
    prompt: int = 0
    reply: int = 0
    open: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(
            self.requests + other.requests,
            self.prompt + other.prompt,
            self.reply + other.reply,
            self.open + other.open,
        )

    def __str__(self) -> str:
        later = f", {self.open} of them longer by replies" if self.open else ""
        counted = f"{self.requests:,} requests{later}, about {self.prompt:,} prompt tokens"
        return f"{counted}, at most {self.reply:,} generated"


def load_of(part: Part, per_token: float) -> Load:
    """What an arm sends, its solo runs included where they can be had; text by characters a token."""
    plan = part.plan
    if plan is None:
        return Load()
    solos = plan.solos if part.has_cold and part.arm == "main" else []
    requests = [request for step in plan.steps for request in step.requests] + solos
    known = sum((_load(request, per_token) for request in requests), Load())
    return known + sum((_awaiting(step, per_token) for step in plan.steps), Load())


def _awaiting(step: PlannedStep, per_token: float) -> Load:
    """What is known of prompts that replies make longer."""
    pieces = [piece for draft in step.drafts.values() for piece in draft.pieces]
    known = sum(_tokens(piece, per_token) for piece in pieces if not isinstance(piece, ReplyOf))
    return Load(0, known, 0, len(step.drafts))


def _load(request: PlannedRequest, per_token: float) -> Load:
    return Load(1, _length(request, per_token), request.max_tokens)


def _length(request: PlannedRequest, per_token: float) -> int:
    prompt = request.prompt_text if request.prompt_ids is None else request.prompt_ids
    return _tokens(prompt or "", per_token)


def _tokens(prompt: Sequence[int] | str, per_token: float) -> int:
    return round(len(prompt) / per_token) if isinstance(prompt, str) else len(prompt)


def imagined(spec_id: str, rung: str, parts: Sequence[Part], per_token: float) -> Workload:
    """A workload in which everything went well and the target showed all that its facts promise."""
    workload = Workload(spec_id, rung, {part.arm: _supposed(part.facts) for part in parts})
    for part in parts:
        for at, step in enumerate(part.plan.steps if part.plan else ()):
            span = Span(arm=part.arm, step=step.name, kind=step.kind, start=10.0 * at, end=10.0 * at + 9)
            workload.spans.append(span)
            workload.outcomes += [_outcome(r, part, span, per_token) for r in step.requests]
            _read(workload, part, span)
        for request in part.plan.solos if part.plan and part.has_cold else ():
            span = Span(arm=part.arm, step="(solos)", kind="solos", start=0, end=1)
            workload.solos[request.key] = [_outcome(request, part, span, per_token)] * 2
    return workload


def _supposed(facts: Facts) -> Facts:
    return facts.model_copy(update={"granule": 1}) if _measured(facts) else facts


def _read(workload: Workload, part: Part, span: Span) -> None:
    """Readings at the start and the end of a step: of gauges, and of the memory of a process of ours."""
    for at in (span.start, span.end):
        if part.sample:
            workload.samples.append(Sample(at=at, arm=part.arm, step=span.step, values=dict(part.sample)))
        if part.facts.how != "endpoint":
            workload.memory.append(Memory(at=at, arm=part.arm, step=span.step, bytes=2**30))


def _outcome(request: PlannedRequest, part: Part, span: Span, per_token: float) -> Outcome:
    facts, count = part.facts, request.max_tokens
    return Outcome(
        id=request.id,
        arm=part.arm,
        step=request.step,
        index=request.index,
        plan=request,
        sent=span.start,
        first=span.start + 1,
        ended=span.end,
        status=200,
        finish_reason="length",
        token_ids=[0] * count if facts.returns_ids else None,
        text="x" * count,
        logprobs=[-0.5] * count if facts.has_logprobs else None,
        gaps=[1.0] * count if facts.has_logprobs else None,
        prompt_tokens=_length(request, per_token),
        completion_tokens=count,
        cached=0 if facts.reports_cached else None,
        tokens_at=[span.start + 1] * count,
    )


def lines_of(
    title: str, load: Load, reasons: Iterable[str], verdicts: Iterable[tuple[Expect, Verdict]]
) -> Iterator[str]:
    """A case in lines: what it sends, or why not, then every expectation that could not be judged."""
    nothing = list(dict.fromkeys(reason for reason in reasons if reason))
    if nothing == [MEASURED]:
        yield f"{title}: {MEASURED}"
        return
    if nothing:
        yield f"{title}: cannot run: {'; '.join(nothing)}"
        return
    yield f"{title}: {load}"
    for expect, verdict in verdicts:
        if verdict.status in (Status.UNOBSERVABLE, Status.NOT_CLAIMED):
            yield f"    {expect.id} ({expect.requirement}) {verdict.status}: {verdict.reason}"

"""What every judge is made of: the registry, the guarded call, and the words to end a judgement early.

Knows verdicts, workloads and how a judge is called. Does not know any requirement's content (the area
modules), the target beyond its declared facts, or pytest. A judge is a pure function of (arguments,
workload): it returns a Finding, or raises Stop when the law's guard, the control or the evidence is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import Field

from conformance.history import Facts, Outcome, Sample, Span, Workload
from conformance.judges.strangers import excused
from conformance.law import Lawful, LawUnknownError, lawful, prompt_length
from conformance.spec import Strict
from conformance.verdict import Status, Verdict

A = TypeVar("A", bound=Strict)


def step_ref(default: Any = ...) -> Any:
    """An argument that names a step of the case; the loader checks that it exists."""
    return Field(default, json_schema_extra={"ref": "step"})


def mark_ref(default: Any = ...) -> Any:
    """An argument that names a mark of the case."""
    return Field(default, json_schema_extra={"ref": "mark"})


def arm_ref(default: Any = ...) -> Any:
    """An argument that names an arm of the case."""
    return Field(default, json_schema_extra={"ref": "arm"})


@dataclass(frozen=True)
class Finding:
    """What a judge saw once it could judge at all: a witness means fail, none means pass."""

    expected: str
    observed: Sequence[str] = ()
    witness: str = ""
    request: str | None = None
    notes: Sequence[str] = ()

    @classmethod
    def about(
        cls, wrong: tuple[Outcome, str] | None, expected: str, observed: Sequence[str] = (), **more: Any
    ) -> Finding:
        """A fail that names the request and says what is wrong with it; without one, none."""
        if wrong is None:
            return cls(expected, observed, **more)
        return cls(expected, observed, witness=wrong[1], request=wrong[0].id, **more)


class Stop(Exception):
    """Ends a judgement with a status other than pass or fail."""

    def __init__(
        self, status: Status, reason: str, observed: Sequence[str] = (), request: str | None = None
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.observed, self.request = status, reason, tuple(observed), request


def need_same_prompts(case: Case, got: Sequence[Outcome], others: Sequence[Outcome]) -> None:
    """Where a salt is a head of the prompt, requests of different salts send different prompts."""
    told = [[(o.plan.prompt_ids, o.plan.prompt_text) for o in some] for some in (got, others)]
    same = case.facts.has_salt or told[0] == told[1]
    need(same, "the prompts differ: the target has no salt field, so a salt of its own is a head of its own")


def guard(holds: bool, reason: str, observed: Sequence[str] = ()) -> None:
    """What must have happened for the check to mean anything; else vacuous."""
    if not holds:
        raise Stop(Status.VACUOUS, reason, observed)


def control(holds: bool, reason: str, observed: Sequence[str] = ()) -> None:
    """The arm without the effect must be right; else inconclusive."""
    if not holds:
        raise Stop(Status.INCONCLUSIVE, reason, observed)


def need(holds: bool, reason: str, observed: Sequence[str] = ()) -> None:
    """What the target must expose for the check; else unobservable."""
    if not holds:
        raise Stop(Status.UNOBSERVABLE, reason, observed)


@dataclass(frozen=True)
class Case:
    """One workload under one requirement, with the questions that judges keep asking of it."""

    workload: Workload
    requirement: str

    @property
    def facts(self) -> Facts:
        return self.facts_of("main")

    def facts_of(self, arm: str) -> Facts:
        """Facts of an arm's process. Stops with an error when the arm never started."""
        if arm not in self.workload.facts:
            raise Stop(Status.ERROR, self.workload.trouble or f"the arm {arm!r} was never started")
        return self.workload.facts[arm]

    def requests(self, step: str, arm: str = "main", *, leavers: bool = False) -> list[Outcome]:
        """A step's requests, all of them finished well; stops with error or timeout otherwise.

        With `leavers` those whose client walked away, which need not finish, are among them.
        """
        self.facts_of(arm)
        found = self.workload.of(step, arm)
        for outcome in found:
            if not leavers or outcome.left is None:
                _check_finished(outcome)
        if not found or self._unfinished(step, arm):
            raise Stop(Status.ERROR, self.workload.trouble or _no_end(self.workload, step))
        _check_complete(self.workload, step, arm)
        return found

    def _unfinished(self, step: str, arm: str) -> bool:
        spans = self.workload.spans_of(step, arm)
        if spans:
            return any("trouble" in span.detail for span in spans)
        return self.workload.trouble is not None or self.workload.cut

    def lawful(self, outcome: Outcome) -> Lawful:
        try:
            return lawful(self.workload, outcome)
        except LawUnknownError as unknown:
            raise Stop(Status.UNOBSERVABLE, str(unknown)) from unknown

    def length(self, outcome: Outcome) -> int:
        try:
            return prompt_length(outcome)
        except LawUnknownError as unknown:
            raise Stop(Status.UNOBSERVABLE, str(unknown)) from unknown

    def block(self) -> int:
        """B of the main arm; stops as unobservable when the target does not say."""
        need(self.facts.block is not None, "the target does not say its block size B")
        return self.facts.block or 1

    def granule(self) -> int:
        """G of the main arm; stops as unobservable when the target does not say."""
        need(self.facts.granule is not None, "the granule G is neither declared nor calibrated")
        return self.facts.granule or 1

    def sample_at(self, mark: str) -> Sample:
        """The reading that a mark took; stops as unobservable, or with the workload's trouble."""
        found = self.workload.at_mark(mark)
        if found is not None:
            return found
        if self.workload.trouble or self.workload.cut:
            raise Stop(Status.ERROR, self.workload.trouble or _no_end(self.workload, mark))
        raise Stop(Status.UNOBSERVABLE, f"no statistics were read at the mark {mark!r}")

    def mark(self, name: str) -> dict[str, float]:
        """The gauges that a mark read, in the harness's names; stops like `sample_at`."""
        return self.sample_at(name).values

    def gauge(self, gauge: str, mark: str) -> float:
        """One gauge at a mark; stops as unobservable where the target does not expose it."""
        values = self.mark(mark)
        need(gauge in values, f"the target does not expose {gauge}")
        return values[gauge]

    def delta(self, gauge: str, a: str, b: str) -> float:
        """By how much a gauge rose from mark `a` to mark `b`."""
        return self.gauge(gauge, b) - self.gauge(gauge, a)

    def reached(self, step: str, arm: str = "main") -> bool:
        """Whether every `when` that waited for a started step saw it there; false where none did wait."""
        waits = [s for s in self.workload.spans if s.kind == "when" and s.arm == arm]
        told = [s.detail.get("reached") for s in waits if s.detail.get("request") == step]
        return bool(told) and all(told)

    def detail(self, step: str, arm: str = "main") -> dict[str, Any]:
        """What the driver noted about a step: `done` of a reset, `spread` of a burst."""
        span = self.workload.span(step, arm)
        if span is None:
            raise Stop(Status.ERROR, self.workload.trouble or _no_end(self.workload, step))
        return span.detail


_SENDING = ("send", "burst", "series", "turns", "start", "repeat", "churn")


def _check_whole(workload: Workload) -> None:
    """A history from which a line was taken shows another workload than the one that ran."""
    if workload.trouble is None and not workload.cut:
        steps = [(s.step, s.arm) for s in workload.spans if s.kind in _SENDING]
        for step, arm in dict.fromkeys([*steps, *((o.step, o.arm) for o in workload.outcomes)]):
            _check_complete(workload, step, arm)


def _check_complete(workload: Workload, step: str, arm: str) -> None:
    """Every request of a step is on record once: 0 to n - 1, n as the step's spans say where they do.

    The indices of an entry of a burst are those of the burst.
    """
    found, spans = workload.of(step, arm), workload.spans_of(step, arm)
    if any(outcome.plan.group for outcome in found if outcome.step == step):
        return
    seen = [outcome.index for outcome in found]
    count = max([*(index + 1 for index in seen), sum(map(_count_of, spans))])
    missing = next((index for index in range(count) if index not in seen), None)
    if missing is not None:
        name = step if spans and spans[0].kind == "send" else f"{step}[{missing}]"
        raise Stop(Status.ERROR, f"{name} is missing from the history")
    twice = next((outcome.id for outcome in found if seen.count(outcome.index) > 1), None)
    if twice is not None:
        raise Stop(Status.ERROR, f"{twice} is in the history more than once")


def _count_of(span: Span) -> int:
    """Requests that a step sent; at least one where its span does not say how many."""
    if span.kind not in _SENDING:
        return 0
    told = span.detail.get("requests")
    return told if isinstance(told, int) else 1


_REFUSED = 400
"""Where a request asks for more than a completion (choices, penalties), a server need not know how."""


def _check_finished(outcome: Outcome) -> None:
    if outcome.timed_out:
        raise Stop(Status.TIMEOUT, f"{outcome.id} did not end in time", request=outcome.id)
    if outcome.status == _REFUSED and outcome.plan.sampling:
        raise Stop(Status.UNOBSERVABLE, f"the target refuses it: {outcome.error}", request=outcome.id)
    if not outcome.ok:
        reason = outcome.error or f"HTTP status {outcome.status}"
        raise Stop(Status.ERROR, f"{outcome.id} failed: {reason}", request=outcome.id)


def _no_end(workload: Workload, step: str) -> str:
    return f"the history ends before {step!r} did" if workload.cut else f"no request of {step!r} is on record"


def counting(case: Case, step: str) -> tuple[list[Outcome], list[str]]:
    """A step's requests that owe a count, and a line on each whose client left before one could come."""
    got = case.requests(step, leavers=True)
    gone = [o.left is not None and o.cached is None for o in got]
    need(not all(gone), f"every client of {step!r} left before a count could come")
    lines = [f"{o.id}  left while {o.left}, not judged" for o, left in zip(got, gone, strict=True) if left]
    return [o for o, left in zip(got, gone, strict=True) if not left], lines


def cached_of(outcome: Outcome) -> int:
    """Reported cached tokens; absent is not 0 and stops as unobservable."""
    need(outcome.cached is not None, f"{outcome.id} reports no cached tokens")
    return outcome.cached or 0


def is_hit(outcome: Outcome) -> bool:
    """Whether a request reports reuse; neither absent nor a count below 0, which is none, says so."""
    return (outcome.cached or 0) > 0


def below_zero(outcomes: Sequence[Outcome]) -> tuple[str, Outcome] | None:
    """The first request with a count that is none, as a witness."""
    wrong = next((o for o in outcomes if (o.cached or 0) < 0), None)
    told = f"{wrong.id} reports {wrong.cached} cached tokens; a count is never below 0" if wrong else ""
    return (told, wrong) if wrong else None


def in_flight_together(outcomes: Sequence[Outcome]) -> bool:
    """Whether every request had been sent before the first one ended."""
    return max(o.sent for o in outcomes) < min(o.ended for o in outcomes)


def held_together(case: Case, step: str, outcomes: Sequence[Outcome]) -> bool:
    """Whether all N held tokens at once (guard of adopt/1): by their tokens, or by a running gauge of N."""
    firsts = [o.first for o in outcomes if o.first is not None]
    by_tokens = len(firsts) == len(outcomes) and max(firsts) < min(o.ended for o in outcomes)
    return by_tokens or gauge_reached(case.workload.during(step), "running", len(outcomes))


def gauge_reached(samples: Sequence[Sample], name: str, value: int) -> bool:
    return any(s.values.get(name, 0) >= value for s in samples)


def times(outcomes: Sequence[Outcome]) -> list[str]:
    """One line per request: when it was sent, gave its first token and ended, seconds."""
    return [f"{o.id}  sent {o.sent:.3f}  first {_moment(o.first)}  ended {o.ended:.3f}" for o in outcomes]


def _moment(at: float | None) -> str:
    return "-" if at is None else f"{at:.3f}"


def seen(outcome: Outcome, law: Lawful) -> str:
    """One request's line: what it reported and what it might."""
    reported = "absent" if outcome.cached is None else str(outcome.cached)
    return f"{outcome.id}  n {law.n}  cached {reported}  lawful {law}"


Run = Callable[[Any, Workload, str], Verdict]
NO_STEPS: Callable[[Any], frozenset[str]] = lambda args: frozenset()  # noqa: E731


@dataclass(frozen=True)
class Judge:
    """A word of the spec language: its arguments, its default requirement and how it rules.

    `solo_steps(args)` names the steps whose requests need a solo run. `run(args, workload, requirement)`
    never raises for anything but a defect in the judge itself.
    """

    name: str
    requirement: str
    args: type[Strict]
    solo_steps: Callable[[Any], frozenset[str]]
    run: Run
    doc: str = field(repr=False)


JUDGES: dict[str, Judge] = {}


def register(
    name: str,
    requirement: str,
    args: type[A],
    solo_steps: Callable[[Any], frozenset[str]] = NO_STEPS,
    *,
    of_all: bool = False,
) -> Callable[[Callable[[A, Case], Finding]], Callable[[A, Case], Finding]]:
    """Enter a function (args, case) -> Finding as the judge `name`.

    `of_all`: it judges figures of the whole server, in which the work of another client shows as well.
    """

    def enter(rule: Callable[[A, Case], Finding]) -> Callable[[A, Case], Finding]:
        def run(given: A, workload: Workload, asked: str) -> Verdict:
            verdict = ruling(rule, given, workload, asked)
            return excused(verdict, workload) if of_all else verdict

        JUDGES[name] = Judge(name, requirement, args, solo_steps, run, (rule.__doc__ or "").strip())
        return rule

    return enter


def ruling(rule: Callable[[A, Case], Finding], args: A, workload: Workload, requirement: str) -> Verdict:
    """Call a judge and put what it found into a verdict, under the target's claims."""
    if workload.unobservable is not None:
        return unseen(workload, requirement)
    try:
        _check_whole(workload)
        verdict = _of_finding(rule(args, Case(workload, requirement)), requirement)
    except Stop as stop:
        verdict = Verdict(
            stop.status, requirement, "", stop.observed, reason=stop.reason, request=stop.request
        )
    return _under_claims(verdict, workload)


def _of_finding(found: Finding, requirement: str) -> Verdict:
    return Verdict(
        Status.FAIL if found.witness else Status.PASS,
        requirement,
        found.expected,
        tuple(found.observed),
        found.witness,
        request=found.request,
        notes=tuple(found.notes),
    )


def unseen(workload: Workload, requirement: str) -> Verdict:
    """What becomes of a case that could not be put to the target at all, under its claims."""
    return _under_claims(
        Verdict(Status.UNOBSERVABLE, requirement, reason=workload.unobservable or ""), workload
    )


def _under_claims(verdict: Verdict, workload: Workload) -> Verdict:
    """A target that says, with a link, that it does not do this is not judged; what was seen stays."""
    facts = workload.facts.get("main")
    claim = facts.claims.get(verdict.requirement) if facts else None
    if claim is None or verdict.status in (Status.ERROR, Status.TIMEOUT):
        return verdict
    reason = f"{claim.reason} ({claim.link})" if claim.link else claim.reason
    seen_as = f"seen all the same: {verdict.status}" + (f", {verdict.reason}" if verdict.reason else "")
    return replace(verdict, status=Status.NOT_CLAIMED, reason=reason, notes=(*verdict.notes, seen_as))

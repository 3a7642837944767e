"""Judges of out/*: outputs do not know about the cache.

Knows how two replies are compared at each grade, and the guards of out/1 to out/3 (docs/requirements.md).
Does not know how a solo run was made (`drive.py`); a solo is the reply of the same request alone, under its
own identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from conformance.history import Grade, Outcome, Workload
from conformance.judges.base import (
    Case,
    Finding,
    Stop,
    control,
    guard,
    in_flight_together,
    is_hit,
    need,
    register,
    step_ref,
    times,
)
from conformance.spec import Name, Strict
from conformance.verdict import Status

DECIDED_TOKENS = 16
DECIDED_SHARE = 0.8


@dataclass(frozen=True)
class Difference:
    """Where two replies part, in words; position counts tokens (characters at grade text)."""

    position: int
    text: str


def of_step(args: Any) -> frozenset[str]:
    return frozenset({args.of})


class SameAsSolo(Strict):
    of: Name = step_ref()
    grade: Literal["target"] | Grade = "target"
    mixed: bool = Field(False, description="the step mixes warm and cold requests, and both must be seen")


@register("same_as_solo", "out/1", SameAsSolo, solo_steps=of_step)
def same_as_solo(args: SameAsSolo, case: Case) -> Finding:
    """Each reply equals its own solo run at the promised grade (out/1 warm = cold, out/2 batch mates)."""
    got = case.requests(args.of)
    solos = [solo_of(case, outcome) for outcome in got]
    grade = effective_grade(case, [*got, *solos], args.grade)
    cold_equals_cold(case, got, grade)
    differences = [compare(case, grade, o, solo) for o, solo in zip(got, solos, strict=True)]
    found = _equality_finding(case, grade, got, differences)
    if not found.witness:
        guard_varied(case)
        _guard_decided(case, grade, solos)
        _guard_outputs(args, case, got)
    return found


def effective_grade(case: Case, outcomes: Sequence[Outcome], asked: str) -> Grade:
    """The grade to judge at: the target's promise or the case's; text where no ids come back (out/1)."""
    grade: Grade = case.facts.grade if asked == "target" else asked  # type: ignore[assignment]
    without_ids = next((o for o in outcomes if o.token_ids is None), None)
    if grade == "bits":
        bare = next((o for o in outcomes if o.token_ids is None or o.logprobs is None), None)
        need(bare is None, f"{bare.id if bare else ''}: grade bits needs token ids and logprobs")
    return "text" if grade == "tokens" and without_ids is not None else grade


def solo_of(case: Case, outcome: Outcome) -> Outcome:
    """The reference run of one request. Stops when there is none, or it failed."""
    runs = case.workload.solos.get(outcome.plan.key, [])
    if not runs and case.workload.trouble:
        raise Stop(Status.ERROR, case.workload.trouble)
    if not runs and _ran_alone(case.workload):
        raise Stop(Status.ERROR, f"the solo run of {outcome.id} is missing from the history")
    need(bool(runs), f"{outcome.id} could not be run alone with reuse off")
    if not runs[0].ok:
        status = Status.TIMEOUT if runs[0].timed_out else Status.ERROR
        raise Stop(status, f"the solo run of {outcome.id} failed: {runs[0].error or runs[0].status}")
    return runs[0]


def _ran_alone(workload: Workload) -> bool:
    """Whether every solo run was made: the driver says so in the span of the solo runs."""
    span = workload.span("(solos)")
    return span is not None and "runs" in span.detail


def cold_equals_cold(case: Case, outcomes: Sequence[Outcome], grade: Grade) -> None:
    """The control: a request that ran alone twice must have answered alike twice (out/1)."""
    own = [case.workload.solos.get(o.plan.key, []) for o in outcomes]
    doubled = [runs for runs in [*own, *case.workload.solos.values()] if len(runs) > 1]
    control(bool(doubled), "no solo run was repeated, so cold = cold is not known")
    for first, second, *_ in doubled:
        parted = compare(case, grade, second, first)
        control(
            parted is None, f"the target differs from itself when cold: {first.id}, {parted and parted.text}"
        )


def compare(
    case: Case, grade: Grade, reply: Outcome, solo: Outcome, other: str = "alone"
) -> Difference | None:
    """The first difference of a reply from its solo at a grade; None when they are equal at that grade.

    `other` says in words whose reply the second one is.
    """
    a, b = _sequence(reply), _sequence(solo)
    if grade == "text" or a is None or b is None:
        return _text_difference(reply.text, solo.text, other)
    found = _sequence_difference(a, b, solo, other)
    if grade == "decided":
        return _decided(case, found, solo)
    return found or (_logprob_difference(reply, solo, other) if grade == "bits" else None)


def apart_from_solo(case: Case, outcomes: Sequence[Outcome]) -> tuple[Outcome, str] | None:
    """The first reply that parts from its solo run at the target's grade, and how; None when none does."""
    solos = [solo_of(case, outcome) for outcome in outcomes]
    grade = effective_grade(case, [*outcomes, *solos], "target")
    cold_equals_cold(case, outcomes, grade)
    for outcome, solo in zip(outcomes, solos, strict=True):
        if difference := compare(case, grade, outcome, solo):
            return outcome, _parts(outcome, difference)
    guard_varied(case)
    _guard_decided(case, grade, solos)
    return None


def guard_varied(case: Case) -> None:
    """Equal replies say something only where another prompt of the workload has another reply (out/1).

    A reply that was cut short by its bound counts as the same as one that it begins.
    """
    ended = [o for o in case.workload.outcomes if o.ok and o.left is None]
    prompts = {(tuple(p.prompt_ids or ()), p.prompt_text, str(p.messages)) for p in (o.plan for o in ended)}
    by_ids = all(o.token_ids is not None for o in ended)
    replies: list[Sequence[object]] = [(o.token_ids or ()) if by_ids else o.text for o in ended]
    longest = max(replies, key=len, default="")
    varied = any(reply != longest[: len(reply)] for reply in replies)
    guard(
        varied or len(prompts) < 2,
        f"all replies to {len(prompts)} prompts are the same text, so equality shows nothing",
    )


def content_of(outcome: Outcome) -> Sequence[int | str]:
    """What a reply says, as exactly as it came: ids, else token texts, else text."""
    return _sequence(outcome) or outcome.text


def _sequence(outcome: Outcome) -> Sequence[int | str] | None:
    return outcome.token_ids if outcome.token_ids is not None else outcome.logprob_tokens


def _first_unequal(a: Sequence[object], b: Sequence[object]) -> int | None:
    position = next((i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), None)
    return min(len(a), len(b)) if position is None and len(a) != len(b) else position


def _sequence_difference(
    a: Sequence[int | str], b: Sequence[int | str], solo: Outcome, other: str
) -> Difference | None:
    at = _first_unequal(a, b)
    if at is None:
        return None
    gap = f", top-2 gap there {solo.gaps[at]:.4g}" if solo.gaps and at < len(solo.gaps) else ""
    return Difference(at, f"token {at} is {_at(a, at)}, {other} it is {_at(b, at)}{gap}")


def _at(tokens: Sequence[int | str], position: int) -> str:
    return repr(tokens[position]) if position < len(tokens) else "missing"


def _text_difference(a: str, b: str, other: str) -> Difference | None:
    at = _first_unequal(a, b)
    if at is None:
        return None
    return Difference(at, f"character {at}: {a[at : at + 20]!r}, {other} {b[at : at + 20]!r}")


def _logprob_difference(reply: Outcome, solo: Outcome, other: str) -> Difference | None:
    at = _first_unequal(reply.logprobs or [], solo.logprobs or [])
    if at is None:
        return None
    a, b = (_at_float(o.logprobs, at) for o in (reply, solo))
    return Difference(at, f"token {at} is the same, but its logprob is {a}, {other} {b}")


def _at_float(values: list[float] | None, position: int) -> str:
    return repr(values[position]) if values and position < len(values) else "missing"


def _decided(case: Case, found: Difference | None, solo: Outcome) -> Difference | None:
    """Only a difference before the first near tie of the cold run counts (grade decided)."""
    if found is None:
        return None
    if solo.gaps is None:
        raise Stop(
            Status.INCONCLUSIVE, f"{solo.id}: replies differ, and without logprobs a near tie cannot be told"
        )
    return found if found.position < decided_length(case, solo) else None


def decided_length(case: Case, solo: Outcome) -> int:
    """Tokens before the first one whose cold top-2 gap is under the declared margin."""
    gaps = solo.gaps or []
    return next((i for i, gap in enumerate(gaps) if gap < case.facts.margin), len(gaps))


def _equality_finding(
    case: Case, grade: Grade, got: Sequence[Outcome], differences: Sequence[Difference | None]
) -> Finding:
    wrong = next(((o, d) for o, d in zip(got, differences, strict=True) if d), None)
    equal = sum(d is None for d in differences)
    return Finding(
        expected=f"each of {len(got)} replies = its solo run, grade {grade}",
        observed=[
            f"{o.id}  cached {o.cached}  {d.text if d else 'equal'}"
            for o, d in zip(got, differences, strict=True)
        ],
        witness=f"{equal} of {len(got)} equal. {_parts(*wrong)}" if wrong else "",
        request=wrong[0].id if wrong else None,
        notes=(f"{equal} of {len(got)} equal to solo at grade {grade}",),
    )


def _parts(outcome: Outcome, difference: Difference) -> str:
    reuse = f"with {outcome.cached} cached tokens" if is_hit(outcome) else "without reported reuse"
    return f"{outcome.id} ({reuse}) parts from its solo run, which two cold runs agree on: {difference.text}"


def _guard_decided(case: Case, grade: Grade, solos: Sequence[Outcome]) -> None:
    if grade != "decided" or any(solo.gaps is None for solo in solos):
        return
    enough = sum(decided_length(case, solo) >= DECIDED_TOKENS for solo in solos)
    reason = f"only {enough} of {len(solos)} prompts have {DECIDED_TOKENS} decided tokens"
    guard(enough >= DECIDED_SHARE * len(solos), reason)


def _guard_outputs(args: SameAsSolo, case: Case, got: Sequence[Outcome]) -> None:
    lines = [f"{o.id}  cached {'absent' if o.cached is None else o.cached}" for o in got]
    need(
        any(o.cached is not None for o in got),
        "no request reports cached tokens, so reuse is not shown",
        lines,
    )
    taken = args.mixed and case.facts.sharing == "one_shot" and not any(is_hit(o) for o in got)
    need(not taken, "whoever takes a stored sequence has it alone, and none of these took it", lines)
    if case.requirement != "out/2" or _hit_is_due(case, got):
        guard(any(is_hit(o) for o in got), f"no request of {args.of!r} reports a hit", lines)
    if args.mixed:
        guard(any(o.cached == 0 for o in got), f"no request of {args.of!r} was cold", lines)
    if case.requirement == "out/2":
        alone = f"the requests of {args.of!r} were not in flight together"
        guard(len(got) > 1 and in_flight_together(got), alone, times(got))


def _hit_is_due(case: Case, got: Sequence[Outcome]) -> bool:
    """A cold burst where nothing is shared in flight has batch mates, but nothing to adopt (out/2)."""
    return bool(case.facts.shares_in_flight) or any(case.lawful(o).low > 0 for o in got)


class OwnContent(Strict):
    of: Name = step_ref()


@register("own_content", "out/3", OwnContent, solo_steps=of_step)
def owncontent_of(args: OwnContent, case: Case) -> Finding:
    """No reply holds another request's content: reply i = solo i and differs from every solo j (out/3).

    Never gated on a hit: a corrupt reply may report 0.
    """
    got = case.requests(args.of)
    solos = [solo_of(case, outcome) for outcome in got]
    grade = effective_grade(case, [*got, *solos], "tokens" if case.facts.grade == "bits" else "target")
    guard_distinct(got, solos)
    cold_equals_cold(case, got, grade)
    foreign = [_foreign(i, got, solos) for i in range(len(got))]
    differences = [compare(case, grade, o, solo) for o, solo in zip(got, solos, strict=True)]
    found = _equality_finding(case, grade, got, differences)
    stolen = next(((o, text) for o, text in zip(got, foreign, strict=True) if text), None)
    if stolen is None:
        return found
    return Finding(found.expected, found.observed, stolen[1], stolen[0].id)


def guard_distinct(got: Sequence[Outcome], solos: Sequence[Outcome]) -> None:
    for i, solo in enumerate(solos):
        twin = next((j for j in range(i) if content_of(solos[j]) == content_of(solo)), None)
        guard(
            twin is None,
            f"alone, {got[twin or 0].id} and {got[i].id} answer alike, so content shows no owner",
        )


def _foreign(index: int, got: Sequence[Outcome], solos: Sequence[Outcome]) -> str:
    reply = content_of(got[index])
    owner = next((j for j, solo in enumerate(solos) if j != index and content_of(solo) == reply), None)
    if owner is None:
        return ""
    return f"{got[index].id} answers what {got[owner].id} answers alone: it holds another request's content"


class Golden(Strict):
    of: Name = step_ref()


@register("golden", "out/1", Golden)
def golden(args: Golden, case: Case) -> Finding:
    """Replies equal the reviewed ones under golden/; the pytest item compares them (`golden.py`)."""
    case.requests(args.of)
    raise Stop(
        Status.NOT_RUN, "no golden outputs are named for this target: --golden NAME compares or writes them"
    )

"""Judges of adopt/4, adopt/5, adopt/8 and adopt/9: reuse by other ways, after a cancel, after a queue.

Knows the guards of these requirements (docs/requirements.md) and how the counter of computed tokens tells
what was computed in truth. Does not know how a client left or what held a request in the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from conformance.history import Outcome, Sample
from conformance.judges.base import Case, Finding, cached_of, guard, mark_ref, need, register, seen, step_ref
from conformance.judges.out import (
    cold_equals_cold,
    compare,
    effective_grade,
    guard_varied,
    of_step,
    solo_of,
)
from conformance.law import Lawful, shared_prefix
from conformance.spec import Name, Strict


class SameCached(Strict):
    of: list[Name] = Field(min_length=2, json_schema_extra={"ref": "step"})


@register("same_cached", "adopt/5", SameCached)
def same_cached(args: SameCached, case: Case) -> Finding:
    """Steps on the same warm state report the same counts, however they were sent or stored (adopt/5)."""
    steps = [case.requests(step) for step in args.of]
    sizes = {len(step) for step in steps}
    guard(len(sizes) == 1, f"the steps have {sorted(sizes)} requests")
    rows = [[step[at] for step in steps] for at in range(len(steps[0]))]
    _guard_same_state(case, rows)
    wrong = next((pair for row in rows if (pair := _apart(case, row))), None)
    if wrong is None:
        hit = any(cached_of(o) > 0 for step in steps for o in step)
        guard(hit, "no arm hits, so a cache that is off would pass")
    return Finding(
        expected=f"{', '.join(args.of)} report the same cached tokens",
        observed=[f"{seen(o, case.lawful(o))}  {_how(case, o)}" for step in steps for o in step],
        witness=_apart_witness(case, *wrong) if wrong else "",
        request=wrong[1].id if wrong else None,
    )


def _guard_same_state(case: Case, rows: Sequence[Sequence[Outcome]]) -> None:
    """What stands stored must be equal for all arms, or their counts may differ lawfully."""
    for row in rows:
        due = {o.id: case.lawful(o).low for o in row}
        alike = max(due.values()) - min(due.values()) <= _slack(case, row)
        guard(alike, f"the arms stand on different states: {due} tokens are due")


def _slack(case: Case, row: Sequence[Outcome]) -> int:
    """Tokens by which counts of equal prompts may differ: none where lengths are exact."""
    lengths = [case.length(o) for o in row]
    return 2 * case.facts.lcp_slack + max(lengths) - min(lengths)


def _apart(case: Case, row: Sequence[Outcome]) -> tuple[Outcome, Outcome] | None:
    first = row[0]
    slack = _slack(case, row)
    return next(((first, o) for o in row if abs(cached_of(o) - cached_of(first)) > slack), None)


def _how(case: Case, outcome: Outcome) -> str:
    stored = case.lawful(outcome).lcp.source
    by = next((o for o in case.workload.outcomes if o.id == stored and o.arm == outcome.arm), None)
    gap = f", {outcome.sent - by.ended:.1f} s after {by.id}" if by is not None else ""
    return ("streamed" if outcome.plan.stream else "not streamed") + gap


def _apart_witness(case: Case, one: Outcome, other: Outcome) -> str:
    return (
        f"{other.id} ({_how(case, other)}) reports {cached_of(other)} cached tokens, {one.id} "
        f"({_how(case, one)}) {cached_of(one)}, although the same tokens were stored for both"
    )


class FollowersGoOn(Strict):
    of: Name = step_ref()
    leader: Name = step_ref()


@dataclass(frozen=True)
class Cancel:
    """One leader that left, what it had computed by then (tokens), and those who waited for it."""

    leader: Outcome
    followers: Sequence[Outcome]
    written: int


@register("followers_go_on", "adopt/4", FollowersGoOn, solo_steps=of_step)
def followers_go_on(args: FollowersGoOn, case: Case) -> Finding:
    """The leader leaves in mid-prefill: who waited ends = solo and does not start from zero (adopt/4).

    Of several rounds those count in which the cancel landed where it should.
    """
    cancels = _cancels(args, case)
    lines = [f"{c.leader.id} left after {c.written} computed tokens" for c in cancels]
    lines += [seen(o, case.lawful(o)) for c in cancels for o in c.followers]
    witness, culprit = "", None
    for cancel in cancels:
        if not witness:
            witness, culprit = _from_zero(case, cancel)
    if not witness:
        witness, culprit = _other_than_solo(case, [o for c in cancels for o in c.followers])
    return Finding(f"{args.of} adopts what {args.leader} had written, and = solo", lines, witness, culprit)


def _cancels(args: FollowersGoOn, case: Case) -> list[Cancel]:
    """The rounds in which the guards hold. Stops with the reason of the last one when there is none."""
    leaders, got = case.workload.of(args.leader), case.requests(args.of)
    need(bool(leaders), f"no request of {args.leader!r} is on record")
    each = len(got) // len(leaders)
    found: list[Cancel] = []
    reason = ""
    for at, leader in enumerate(leaders):
        followers = got[at * each : (at + 1) * each]
        reason = _why_not(case, leader, followers) or reason
        if not _why_not(case, leader, followers):
            found.append(Cancel(leader, followers, written_by(case, leader) or 0))
    guard(bool(found), reason)
    return found


def _why_not(case: Case, leader: Outcome, followers: Sequence[Outcome]) -> str:
    if leader.left != "prefilling":
        return f"the client of {leader.id} was not seen to leave in mid-prefill"
    late = next((o.id for o in followers if not leader.sent < o.sent < leader.ended), None)
    if late is not None:
        return f"{late} was not sent while {leader.id} was prefilling"
    written = written_by(case, leader) or 0
    if written < case.granule():
        return f"{leader.id} left after {written} computed tokens, less than one granule"
    warm = next((law.lcp.source for o in followers if (law := case.lawful(o)).lcp.low), None)
    return f"the cache was not empty: {warm} had stored a prefix before" if warm else ""


def written_by(case: Case, outcome: Outcome) -> int | None:
    """Prompt tokens computed between the moment a request was sent and the moment its client left, at least.

    By the server's own counter, which is the request's alone while others wait or are idle; None when it was
    not read in between.
    """
    readings = [s for s in case.workload.readings() if "computed_tokens" in s.values]
    need(bool(readings), "the target does not tell how many tokens it has computed")
    during = [s for s in readings if outcome.sent < s.at <= outcome.ended]
    # Readings have gaps on a busy machine: one of before may lack what earlier requests computed after it.
    start = [*during[:1], *_quiet(case, readings, outcome)][-1:]
    return int(during[-1].values["computed_tokens"] - start[0].values["computed_tokens"]) if during else None


def _quiet(case: Case, readings: Sequence[Sample], outcome: Outcome) -> list[Sample]:
    """Readings of the quiet between a request and all that were sent before it."""
    earlier = (o.ended for o in case.workload.outcomes if o.arm == outcome.arm and o.sent < outcome.sent)
    since = max(earlier, default=0.0)
    return [s for s in readings if since <= s.at <= outcome.sent and s.quiet]


def _from_zero(case: Case, cancel: Cancel) -> tuple[str, str | None]:
    got, written, leader = cancel.followers, cancel.written, cancel.leader.id
    zero = next((o for o in got if cached_of(o) <= 0), None)
    if zero is not None:
        return f"{zero.id} began again from zero, although {leader} had computed {written} tokens", zero.id
    granule, prefix = case.granule(), shared_prefix(case.workload, got)
    lengths = [case.length(o) for o in got]
    computed = sum(n - cached_of(o) for o, n in zip(got, lengths, strict=True))
    once = prefix - min(prefix, written) // granule * granule
    bound = once + sum(n - prefix for n in lengths) + len(got) * granule
    if computed <= bound:
        return "", None
    most = min(got, key=cached_of).id
    over = computed - bound
    return f"after {leader} {computed} tokens were computed, {over} over the {bound} left to do once", most


def _other_than_solo(case: Case, got: Sequence[Outcome]) -> tuple[str, str | None]:
    solos = [solo_of(case, o) for o in got]
    grade = effective_grade(case, [*got, *solos], "target")
    cold_equals_cold(case, got, grade)
    for outcome, solo in zip(got, solos, strict=True):
        if difference := compare(case, grade, outcome, solo):
            return f"{outcome.id} parts from its solo run: {difference.text}", outcome.id
    guard_varied(case)
    return "", None


class RetryReuses(Strict):
    left: Name = step_ref()
    again: Name = step_ref()


Retry = tuple[Outcome, int, Outcome, int]
"""A cancelled request, the tokens it had computed, its retry, and what that must adopt of them."""


@register("retry_reuses", "adopt/8", RetryReuses)
def retry_reuses(args: RetryReuses, case: Case) -> Finding:
    """A retry after a cancelled prefill reuses what was written, but for the chunk in flight (adopt/8).

    Of several that were cancelled those count that had more than a chunk behind them.
    """
    gone, again = case.workload.of(args.left), case.requests(args.again)
    guard(len(gone) == len(again), f"{len(gone)} requests were cancelled, {len(again)} sent again")
    early = [(a, b) for a, b in zip(gone, again, strict=True) if a.left == "prefilling" and a.ended <= b.sent]
    guard(bool(early), f"no client of {args.left!r} was seen to leave in mid-prefill before its retry")
    retries = [_retry(case, a, b) for a, b in early]
    lines = [f"{a.id} left after {n} computed tokens, {seen(b, case.lawful(b))}" for a, n, b, _ in retries]
    guard(any(due > 0 for *_, due in retries), "every client left too early to be owed a hit", lines)
    wrong = next((retry for retry in retries if cached_of(retry[2]) < retry[3]), None)
    return Finding(
        expected="each retry adopts what had been computed, but for one chunk",
        observed=lines,
        witness=_paid_twice(*wrong) if wrong else "",
        request=wrong[2].id if wrong else None,
    )


def _retry(case: Case, gone: Outcome, again: Outcome) -> Retry:
    written, granule = written_by(case, gone) or 0, case.granule()
    known = min(written, case.length(again) - 1) - (case.facts.chunk or granule)
    return gone, written, again, known // granule * granule


def _paid_twice(gone: Outcome, written: int, again: Outcome, due: int) -> str:
    return (
        f"{again.id} reports {cached_of(again)} cached tokens, although {gone.id} had computed {written} "
        f"of the same prompt before its client left: at least {due} were owed"
    )


class QueuedTruly(Strict):
    of: Name = step_ref()
    since: Name = mark_ref()
    until: Name = mark_ref()


@register("queued_truly", "adopt/9", QueuedTruly, solo_steps=of_step, of_all=True)
def queued_truly(args: QueuedTruly, case: Case) -> Finding:
    """A request whose prefix was evicted while it was queued computes truly and reports truly (adopt/9).

    Between the two marks computed tokens rise by the n - cached of every request, and the reply = solo.
    """
    queued = case.requests(args.of)[0]
    law = case.lawful(queued)
    least, most = _computed_as_told(case, args)
    rise = case.delta("computed_tokens", args.since, args.until)
    witness = _lie(queued, law, rise, least, most)
    culprit: str | None = queued.id
    if not witness:
        witness, culprit = _other_than_solo(case, [queued])
    lines = [seen(queued, law), f"computed tokens rose by {rise:g}, the reports add up to {most}"]
    if not witness:
        _guard_evicted(case, queued, law, lines)
    return Finding(
        "computed tokens rise by n - cached of every request; reply = solo", lines, witness, culprit
    )


def _computed_as_told(case: Case, args: QueuedTruly) -> tuple[int, int]:
    """Tokens that were computed if every report between the marks is true, at least and at most.

    Where the granule spans several blocks, an adopter may hold almost a granule more than it says.
    """
    since, until = case.sample_at(args.since).at, case.sample_at(args.until).at
    ran = [o for o in case.workload.outcomes if o.arm == "main" and since <= o.sent <= until]
    broken = next((o.id for o in ran if not o.ok), None)
    guard(broken is None, f"{broken} did not come to its end, so the sum of reports is not known")
    most = sum(case.length(o) - cached_of(o) for o in ran)
    spare = max(0, case.granule() - (case.facts.block or case.granule()))
    return most - spare * len(ran), most


def _lie(queued: Outcome, law: Lawful, rise: float, least: int, most: int) -> str:
    cached = cached_of(queued)
    if not 0 <= cached <= law.high:
        return f"{queued.id} reports {cached} cached tokens; at most {law.high_arithmetic} can be"
    if rise < least:
        return (
            f"{most - rise:g} tokens fewer were computed than the reports say, so rows were used that "
            f"{queued.id} (cached {cached}) or its neighbours do not tell of"
        )
    if rise > most:
        return (
            f"{rise - most:g} tokens more were computed than the reports say: {queued.id} reports {cached} "
            "cached tokens as it was queued, not as it was started"
        )
    return ""


def _guard_evicted(case: Case, queued: Outcome, law: Lawful, lines: Sequence[str]) -> None:
    started = queued.first if queued.first is not None else queued.ended
    readings = [(s.at, s.values["evictions"]) for s in case.workload.readings() if "evictions" in s.values]
    need(bool(readings), "the target does not tell its evictions")
    before = [value for at, value in readings if at <= queued.sent]
    until = [value for at, value in readings if at <= started]
    evicted = until[-1] - before[-1] if before else 0
    guard(evicted > 0, f"nothing was evicted between the queueing and the start of {queued.id}", lines)
    waited = [
        s
        for s in case.workload.readings()
        if queued.sent <= s.at <= started and s.values.get("waiting", 1) > 0
    ]
    guard(bool(waited), f"{queued.id} was not seen to wait", lines)
    guard(law.low > 0, f"no prefix of {queued.id} had been stored", lines)
    lost = cached_of(queued) < law.low
    guard(
        lost, f"{queued.id} still found all {law.low} tokens of its prefix: another entry was evicted", lines
    )

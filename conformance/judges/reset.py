"""Judges of reset/1 to reset/4: an answer to a reset means what it says, and what was forgotten stays so.

Knows the guards of these requirements (docs/requirements.md), and that a target may refuse. Does not know how
a target is reset (the dialect).
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.history import Outcome, Span
from conformance.judges.adopt import unlawful
from conformance.judges.base import (
    Case,
    Finding,
    Stop,
    cached_of,
    guard,
    mark_ref,
    need,
    register,
    seen,
    step_ref,
)
from conformance.judges.out import apart_from_solo, content_of, of_step, solo_of
from conformance.spec import Name, Strict
from conformance.verdict import Status


def reset_of(case: Case, step: str) -> Span:
    """The span of a reset or a reload; stops with an error where it did not run."""
    case.detail(step)
    span = case.workload.span(step)
    assert span is not None
    return span


def answer_of(span: Span) -> str:
    """What the target said, in a word."""
    words: dict[object, str] = {True: "done", False: "refused"}
    return words.get(span.detail.get("done"), "no answer")


def told_done(case: Case, step: str) -> Span:
    """The span of a reset that says that it is done; anything else is nothing to judge."""
    span = reset_of(case, step)
    guard(answer_of(span) == "done", f"{step}: {answer_of(span)} ({_shown(span)})")
    return span


def _shown(span: Span) -> str:
    return f"status {span.detail.get('status')}: {str(span.detail.get('answer'))[:80]}"


def guard_warm(case: Case, warm: Sequence[Outcome], span: Span, lines: Sequence[str]) -> None:
    """Before the reset the prompt must have hit, or what misses after it was never stored."""
    before = all(o.ended <= span.start for o in warm)
    guard(before and all(cached_of(o) > 0 for o in warm), "the cache was not warm before the reset", lines)


def stale(outcome: Outcome, span: Span) -> str:
    """Why a hit after a reset is a failure; empty where there is none."""
    if not cached_of(outcome):
        return ""
    return (
        f"{outcome.id} reports {outcome.cached} cached tokens, although {span.step} said that it was done "
        f"before it was sent"
    )


# ---- reset/1


class Forgotten(Strict):
    of: Name = step_ref()
    warm: Name = step_ref()
    reset: Name = step_ref()
    after: Name = mark_ref()


@register("forgotten", "reset/1", Forgotten, of_all=True)
def forgotten(args: Forgotten, case: Case) -> Finding:
    """After a reset that says done nothing is cached, and only running requests hold blocks (reset/1).

    `warm` hit before the reset, `of` is the same prompt after it, `after` a mark between the reset and `of`.
    """
    got, span = case.requests(args.of), told_done(case, args.reset)
    lines = [seen(o, case.lawful(o)) for o in got]
    wrong = next(((o, w) for o in got if (w := stale(o, span))), None)
    kept = _kept(case, args.after, lines)
    if wrong is None and not kept:
        guard_warm(case, case.requests(args.warm), span, lines)
        guard(all(span.end <= o.sent for o in got), f"{args.of!r} was sent before the reset was done", lines)
    return Finding(
        expected="0 cached tokens, and live blocks are those of running requests",
        observed=lines,
        witness=wrong[1] if wrong else kept,
        request=wrong[0].id if wrong else None,
    )


def _kept(case: Case, mark: str, lines: list[str]) -> str:
    """Blocks that live on without a request, in words; empty where there are none, or nothing tells."""
    found = case.workload.at_mark(mark)
    values = found.values if found else {}
    if not {"live", "referenced"} <= values.keys():
        lines.append("live and referenced blocks are not told")
        return ""
    live, held = values["live"], values["referenced"]
    lines.append(f"{live:g} live and {held:g} referenced blocks at {mark}")
    return (
        "" if live <= held else f"{live - held:g} blocks live on after the reset though no request holds them"
    )


# ---- reset/2


class ResetMeant(Strict):
    reset: Name = step_ref()
    running: Name = step_ref()
    warm: Name = step_ref()
    of: Name = step_ref()


def _both(args: ResetMeant) -> frozenset[str]:
    return frozenset({args.running, args.of})


@register("reset_meant", "reset/2", ResetMeant, solo_steps=_both)
def reset_meant(args: ResetMeant, case: Case) -> Finding:
    """A reset during a decode says done or refused, and means it; the decode = solo either way (reset/2).

    `warm` hit before, `of` is the same prompt right after: cold when done, as before when refused.
    """
    span, got, running = reset_of(case, args.reset), case.requests(args.of), case.requests(args.running)
    lines = [f"{args.reset}: {answer_of(span)} ({_shown(span)})", *(seen(o, case.lawful(o)) for o in got)]
    wrong = next(((o, w) for o in got if (w := _not_meant(case, o, span))), None)
    wrong = wrong or apart_from_solo(case, [*running, *got])
    if wrong is None:
        guard(answer_of(span) != "no answer", f"{args.reset}: {_shown(span)}", lines)
        decoding = all(o.first is not None and o.first <= span.start and span.end <= o.ended for o in running)
        guard(decoding, f"{args.running!r} did not decode while the reset was asked for", lines)
        guard_warm(case, case.requests(args.warm), span, lines)
    return Finding.about(
        wrong,
        expected=f"{args.of} as {args.reset} says, and {args.running} = solo",
        observed=lines,
    )


def _not_meant(case: Case, outcome: Outcome, span: Span) -> str:
    if answer_of(span) == "done":
        return stale(outcome, span)
    law = case.lawful(outcome)
    refused = answer_of(span) == "refused" and not law.allows(cached_of(outcome))
    return f"{span.step} was refused, and yet: {unlawful(outcome, law)}" if refused else ""


# ---- reset/3


class Renewed(Strict):
    of: Name = step_ref()
    old: Name = step_ref()
    warm: Name = step_ref()
    reload: Name = step_ref()


@register("renewed", "reset/3", Renewed, solo_steps=of_step)
def renewed(args: Renewed, case: Case) -> Finding:
    """With new weights under the same name nothing hits, and replies are those of the new ones (reset/3).

    `old` is the reply of before and `warm` its repeat; `of` is the same request after the reload. Solo runs
    come last, so they are of the new weights.
    """
    got, old, span = case.requests(args.of), case.requests(args.old), told_done(case, args.reload)
    lines = [seen(o, case.lawful(o)) for o in got]
    wrong = next(((o, w) for o in got if (w := stale(o, span))), None) or apart_from_solo(case, got)
    if wrong is None:
        guard_warm(case, case.requests(args.warm), span, lines)
        pairs = zip(got, old, strict=False)
        asked = all(a.plan.key == b.plan.key and span.end <= a.sent for a, b in pairs)
        guard(asked, f"{args.of!r} does not send the requests of {args.old!r} again after the reload", lines)
        told = any(content_of(solo_of(case, a)) != content_of(b) for a, b in zip(got, old, strict=False))
        guard(told, "the new weights answer as the old ones do", lines)
    return Finding.about(
        wrong,
        expected=f"{args.of} adopts nothing and = solo on the new weights",
        observed=lines,
    )


# ---- reset/4


class NothingCarried(Strict):
    reset: Name = step_ref()
    begun: Name = step_ref()
    of: Name = step_ref()
    control: Name = step_ref()


def _after(args: NothingCarried) -> frozenset[str]:
    return frozenset({args.begun, args.of})


@register("nothing_carried", "reset/4", NothingCarried, solo_steps=_after)
def nothing_carried(args: NothingCarried, case: Case) -> Finding:
    """A prefill that began before a reset publishes nothing after it; both it and `of` = solo (reset/4).

    `of` is the prompt of `begun` again once that has ended; `control` once more, which hits.
    """
    span, got, begun = reset_of(case, args.reset), case.requests(args.of), case.requests(args.begun)
    need(answer_of(span) != "refused", f"the target refuses a reset while it works: {_shown(span)}")
    told_done(case, args.reset)
    lines = [f"{o.id}  sent {o.sent:.3f}  first {o.first}" for o in begun]
    lines += [f"{args.reset}  {span.start:.3f} to {span.end:.3f}", *(seen(o, case.lawful(o)) for o in got)]
    wrong = next(((o, _carried(o, args)) for o in got if cached_of(o)), None)
    wrong = wrong or apart_from_solo(case, [*begun, *got])
    if wrong is None:
        _guard_begun(args, case, begun, span, lines)
    return Finding.about(
        wrong,
        expected=f"{args.of} adopts nothing of what {args.begun} computed; both = solo",
        observed=lines,
    )


def _carried(outcome: Outcome, args: NothingCarried) -> str:
    return (
        f"{outcome.id} reports {outcome.cached} cached tokens: {args.begun}, begun before {args.reset}, "
        f"published them into the cache after it"
    )


def _guard_begun(
    args: NothingCarried, case: Case, begun: Sequence[Outcome], span: Span, lines: Sequence[str]
) -> None:
    inside = all(o.sent < span.start and o.first is not None and span.end < o.first for o in begun)
    guard(inside, f"{args.begun!r} was not in its prefill while the reset was done", lines)
    hits = all(cached_of(o) > 0 for o in case.requests(args.control))
    if not hits:
        raise Stop(
            Status.INCONCLUSIVE, f"{args.control!r} does not hit, so a cache that is off would pass", lines
        )

"""What requests ask for that can never come: adapters nobody serves, phases out of reach, holds for ever.

Knows what a request says as far as it is the same on every target. Does not know which names refer to what
(`referring.py`), lengths that only a target tells (`plan.py`), or how long a wait is bounded (`drive.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from conformance import walk
from conformance.asks import ADAPTER_SALT, Request
from conformance.dialect import dialects
from conformance.lengths import LengthError, constant
from conformance.marks import Document, Location, Problem
from conformance.spec import (
    Burst,
    Churn,
    Hold,
    Join,
    Length,
    Reload,
    Spec,
    Start,
    Step,
    Turns,
    When,
    entries,
)

MOST = 64
"""Requests of one burst: each has a connection of its own."""


def sense(spec: Spec, document: Document) -> Iterator[Problem]:
    """Every request, or wait for one, that makes no sense on any target."""
    yield from _each(spec, document)
    yield from _salts(spec, document)
    yield from _adapters(spec, document)
    yield from _leaves(spec, document)
    yield from _waits(spec, document)
    yield from _holds(spec, document)


def _each(spec: Spec, document: Document) -> Iterator[Problem]:
    for loc, step in walk.steps(spec):
        if not isinstance(step, Burst | Start) or not step.each:
            continue
        if (total := sum(entry.requests for entry in step.each)) > MOST:
            yield document.problem((*loc, "each"), f"these are {total} requests at once", f"up to {MOST}")
        named = Counter(entry.name for entry in step.each if entry.name)
        for i, entry in enumerate(step.each):
            if entry.name and entry.name in [e.name for e in step.each[:i]]:
                message = f"{named[entry.name]} entries are called {entry.name!r}"
                yield document.problem((*loc, "each", i, "name"), message, "a name of its own")


def _salted(spec: Spec) -> Iterator[tuple[Location, str]]:
    """Every salt where it is said."""
    for loc, step in walk.steps(spec):
        if isinstance(step, Request | Churn):
            yield (*loc, "salt"), step.salt
        for i, entry in enumerate(step.each or () if isinstance(step, Burst | Start) else ()):
            yield (*loc, "each", i, "salt"), entry.salt


def _salts(spec: Spec, document: Document) -> Iterator[Problem]:
    for loc, salt in _salted(spec):
        if not salt.strip():
            yield document.problem(loc, "an empty salt is none", "none, shared, private, or a label")


def _adapters(spec: Spec, document: Document) -> Iterator[Problem]:
    """A name that no family of servers has would leave the case unobservable for ever."""
    known = sorted({name for dialect in dialects() for name in dialect.ask.adapters})
    for loc, said in _adapters_said(spec):
        for name in _words(spec, said):
            if name not in known:
                message = f"no dialect has an adapter {name!r}"
                yield document.problem(loc, message, ", ".join(known))


def _adapters_said(spec: Spec) -> Iterator[tuple[Location, str]]:
    for loc, step in walk.steps(spec):
        each = list(step.each or ()) if isinstance(step, Burst | Start) else []
        places: list[tuple[Location, object]] = [(loc, step)]
        places += [((*loc, "each", i), entry) for i, entry in enumerate(each)]
        for where, said in places:
            if isinstance(said, Request | Reload) and said.adapter is not None:
                yield (*where, "adapter"), said.adapter
    for loc, salt in _salted(spec):
        if salt.startswith(ADAPTER_SALT):
            yield loc, salt.removeprefix(ADAPTER_SALT)


def _words(spec: Spec, said: str) -> list[str]:
    """What is said, or what a ladder's word stands for on each rung."""
    return [str(word) for word in spec.ladder.get(said[1:], ())] if said.startswith("$") else [said]


def _longest(length: Length) -> int | None:
    """Tokens of a reply where that is the same on every target."""
    try:
        return constant(length)
    except LengthError:
        return None


def _leaves(spec: Spec, document: Document) -> Iterator[Problem]:
    for loc, step in walk.asking(spec):
        leave = step.leave if isinstance(step, Request) else None
        if leave is None or leave.phase != "decoding":
            continue
        longest = _longest(step.max_tokens)
        if longest is not None and leave.tokens > longest:
            message = f"leaves after {leave.tokens} tokens, but no reply has more than {longest}"
            yield document.problem((*loc, "leave", "tokens"), message, f"1 to {longest}")


def _waits(spec: Spec, document: Document) -> Iterator[Problem]:
    started: dict[str, list[Request]] = {}
    for loc, step in walk.steps(spec):
        if isinstance(step, Start):
            started[step.start] = _requests(step)
        if isinstance(step, When) and step.when.phase == "decoding":
            yield from _wait(document, loc, step, started.get(step.when.request, []))


def _wait(document: Document, loc: Location, step: When, asked: list[Request]) -> Iterator[Problem]:
    name, tokens = step.when.request, step.when.tokens
    if any(not request.stream for request in asked):
        message = f"{name!r} is not streamed, so nobody sees that it decodes"
        yield document.problem((*loc, "when", "phase"), message, "queued, prefilling, or `stream: true`")
    longest = [length for request in asked if (length := _longest(request.max_tokens)) is not None]
    if longest and tokens > min(longest):
        message = f"waits for {tokens} tokens, but {name!r} has no more than {min(longest)}"
        yield document.problem((*loc, "when", "tokens"), message, f"1 to {min(longest)}")


def _requests(step: Step) -> list[Request]:
    """What a step asks, each request or entry once, with what its burst says."""
    if isinstance(step, Burst | Start) and step.each:
        return list(entries(step))
    return [step] if isinstance(step, Request) else []


def _holds(spec: Spec, document: Document) -> Iterator[Problem]:
    """Whoever waits for requests that stand still waits for ever: `hold: off` comes before."""
    held, inside = Hold(hold="off"), dict[str, Step]()
    for loc, step in walk.steps(spec):
        if isinstance(step, Hold):
            # What was started before a hold may be past its phase.
            held, inside = step, {}
        if isinstance(step, Start):
            inside[step.start] = step
        waits = inside.get(step.join) if isinstance(step, Join) else step
        if waits and not isinstance(step, Start) and _stands(held, waits):
            message = f"would wait for ever: what is held stands still, {held.hold}"
            yield document.problem(loc, message, "`hold: off` before it, or a start and a `when` instead")


def _stands(held: Hold, step: Step) -> bool:
    """Whether some request surely stands still, and nobody walks away from it.

    A prefill of one chunk passes a hold after some tokens of it, and a reply that is one token longer than
    a hold allows ends: only what holds on every target counts.
    """
    if isinstance(step, Turns | Churn):
        asked: list[Length] = [step.max_tokens if isinstance(step, Turns) else 1]
    else:
        asked = [request.max_tokens for request in _requests(step) if request.leave is None]
    if held.hold == "decoding":
        return any((_longest(length) or 0) > held.after + 1 for length in asked)
    return bool(asked) and (held.hold == "queued" or (held.hold == "prefilling" and held.after == 0))

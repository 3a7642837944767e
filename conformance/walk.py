"""The places of a spec, each with where it stands in the file: steps, requests, prompt parts, references.

Knows the shape of a spec. Does not know what is right or wrong about any of it (`check.py`, `referring.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from conformance.marks import Location
from conformance.spec import (
    BanFirst,
    Burst,
    Churn,
    Entry,
    Loop,
    Part,
    Repeat,
    Request,
    Send,
    Series,
    Spec,
    Start,
    Step,
    StopToken,
    Turns,
    entries,
    step_name,
)

Asking = Send | Burst | Series | Start | Turns | Entry


def steps(spec: Spec) -> Iterator[tuple[Location, Step]]:
    """Every step in order, those of a loop in its place."""
    yield from _steps(("steps",), spec.steps)


def _steps(where: Location, found: Sequence[Step]) -> Iterator[tuple[Location, Step]]:
    for i, step in enumerate(found):
        yield (*where, i), step
        if isinstance(step, Loop):
            yield from _steps((*where, i, "steps"), step.steps)


def asking(spec: Spec) -> Iterator[tuple[Location, Asking]]:
    """Whatever makes requests of a prompt of its own: steps, and entries (with what their burst says)."""
    for loc, step in steps(spec):
        if isinstance(step, Burst | Start) and step.each:
            yield from (((*loc, "each", i), entry) for i, entry in enumerate(entries(step)))
        elif isinstance(step, Send | Burst | Series | Start | Turns):
            yield loc, step


def parts(spec: Spec) -> Iterator[tuple[Location, Part]]:
    """Every prompt part, once: an inherited one where the burst says it."""
    for loc, step in steps(spec):
        yield from parts_of(loc, step)


def parts_of(loc: Location, step: Step | Entry) -> Iterator[tuple[Location, Part]]:
    """The prompt parts of one step and its entries."""
    for key, found in _lists(step):
        yield from (((*loc, *key, i), part) for i, part in enumerate(found))
    if isinstance(step, Burst | Start):
        for i, entry in enumerate(step.each or ()):
            yield from parts_of((*loc, "each", i), entry)


def _lists(step: Step | Entry) -> Iterator[tuple[Location, Sequence[Part]]]:
    if isinstance(step, Turns):
        yield ("opening",), step.opening
        yield ("each",), step.each
    if isinstance(step, Request):
        yield ("prompt",), step.prompt or []
        for i, message in enumerate(step.messages or ()):
            yield ("messages", i, "content"), message.content


def named(spec: Spec) -> Iterator[tuple[Location, str, int]]:
    """Every name that requests have, and how many requests: steps, and entries of bursts."""
    for loc, step in steps(spec):
        if count := requests(spec, step):
            yield loc, step_name(step), count
        if isinstance(step, Burst | Start):
            for i, entry in enumerate(step.each or ()):
                if entry.name is not None:
                    yield (*loc, "each", i), entry.name, entry.requests


def requests(spec: Spec, step: Step) -> int:
    """Requests of a step in one round; 0 where it sends none. Of a churn nobody knows: at least 1."""
    if isinstance(step, Burst | Start) and step.each:
        return sum(entry.requests for entry in step.each)
    if isinstance(step, Turns):
        return step.count
    if isinstance(step, Burst | Series | Start):
        return step.requests or 1
    if isinstance(step, Repeat):
        return step.times * max(1, _repeated(spec, step))
    return int(isinstance(step, Request | Churn))


def _repeated(spec: Spec, step: Repeat) -> int:
    """Requests that a repeat sends again: of the step of that name above it, or of entries."""
    above = takewhile(lambda other: other is not step, (found for _, found in steps(spec)))
    found = 0
    for other in above:
        each = other.each or () if isinstance(other, Burst | Start) else ()
        found += sum(entry.requests for entry in each if entry.name == step.of)
        found += requests(spec, other) if step_name(other) == step.of else 0
    return found


def rounds(spec: Spec, name: str) -> int:
    """How often a step of that name runs."""
    for step in spec.steps:
        if isinstance(step, Loop) and any(step_name(inner) == name for inner in step.steps):
            return step.loop
    return 1


def stops(request: Request) -> Iterator[tuple[Location, StopToken]]:
    """Stop strings that are a token of an earlier reply, by their place in the request."""
    sampling = request.sampling
    for i, stop in enumerate(sampling.stop or () if sampling else ()):
        if isinstance(stop, StopToken):
            yield ("sampling", "stop", i, "reply_of"), stop


def ban(request: Request) -> BanFirst | None:
    """The step whose first tokens a request bans."""
    bias = request.sampling.logit_bias if request.sampling else None
    return bias if isinstance(bias, BanFirst) else None

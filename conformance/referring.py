"""What steps say of each other: that it was sent before, that it is one request, that it runs.

Knows the order of a spec's steps. Does not know lengths, texts or expectations (`check.py`), nor whether a
reply will come (`drive.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from conformance import walk
from conformance.marks import Document, Location, Problem
from conformance.spec import (
    Burst,
    Churn,
    Entry,
    Join,
    Loop,
    Overwrite,
    RenderedPart,
    Repeat,
    RepeatPart,
    ReplyPart,
    Request,
    Spec,
    Start,
    Step,
    Turns,
    When,
    step_name,
)


@dataclass
class _Before:
    """What stands above a place: requests by name, and what was started and not yet joined."""

    counts: dict[str, int] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    """Names whose prompts depend on replies, or on how far a churn goes."""
    started: dict[str, None] = field(default_factory=dict)


def referring(spec: Spec, document: Document) -> Iterator[Problem]:
    """Every reference of one step to another that cannot be."""
    before = _Before()
    for loc, step in walk.steps(spec):
        yield from _shape(document, loc, step)
        yield from _refers(document, loc, step, before)
        _enter(spec, step, before)
    yield from _loops(spec, document)


def _enter(spec: Spec, step: Step, before: _Before) -> None:
    if isinstance(step, Join):
        before.started.pop(step.join, None)
    if count := walk.requests(spec, step):
        before.counts[step_name(step)] = count
    if isinstance(step, Turns | Churn):
        before.unknown.add(step_name(step))
    if isinstance(step, Burst | Start):
        names = {entry.name for entry in step.each or () if entry.name}
        before.counts |= {
            name: sum(entry.requests for entry in step.each or () if entry.name == name) for name in names
        }
    if isinstance(step, Start):
        before.started[step.start] = None


def _shape(document: Document, loc: Location, step: Step) -> Iterator[Problem]:
    """Keys of which one excludes or needs another."""
    if isinstance(step, Burst | Start) and step.each:
        if step.requests is not None:
            yield document.problem((*loc, "requests"), "`each` says how many there are", "leave it out")
        for i, entry in enumerate(step.each):
            yield from _asked(document, (*loc, "each", i), entry, step)
        return
    if isinstance(step, Burst) and step.requests is None:
        yield document.problem(loc, "the key 'requests' is missing", "requests: 8, or each: [...]")
    if isinstance(step, Request):
        yield from _asked(document, loc, step)
    if isinstance(step, Churn):
        given = [key for key in ("tokens", "pools", "evictions") if getattr(step, key) is not None]
        if len(given) != 1:
            yield document.problem(loc, "how long to churn is said once", "tokens, pools or evictions")


def _asked(
    document: Document, loc: Location, request: Request, burst: Request | None = None
) -> Iterator[Problem]:
    prompt = request.prompt or (burst and not request.messages and burst.prompt)
    messages = request.messages or (burst and not request.prompt and burst.messages)
    if prompt and messages:
        yield document.problem((*loc, "messages"), "a request has a prompt or messages", "one of the two")
    elif not prompt and not messages:
        yield document.problem(loc, "the key 'prompt' is missing", "prompt: [...], or messages: [...]")


def _refers(document: Document, loc: Location, step: Step, before: _Before) -> Iterator[Problem]:
    if isinstance(step, Join):
        yield from _running(document, (*loc, "join"), step.join, before)
    if isinstance(step, When):
        yield from _running(document, (*loc, "when", "request"), step.when.request, before)
    if isinstance(step, Repeat):
        yield from _earlier(document, (*loc, "of"), step.of, before, known=True)
    if isinstance(step, Overwrite):
        yield from _earlier(document, (*loc, "block_of"), step.block_of, before)
    if isinstance(step, Request):
        yield from _in_request(document, loc, step, before)
    if isinstance(step, Burst | Start):
        for i, entry in enumerate(step.each or ()):
            yield from _in_request(document, (*loc, "each", i), entry, before)
    for where, part in walk.parts_of(loc, step):
        if isinstance(part, RepeatPart):
            yield from _earlier(document, (*where, "repeat_of"), part.repeat_of, before, known=True)
        if isinstance(part, ReplyPart):
            yield from _earlier(document, (*where, "reply_of"), part.reply_of, before, single=True)
        if isinstance(part, RenderedPart):
            yield from _earlier(document, (*where, "rendered_of"), part.rendered_of, before, single=True)


def _in_request(
    document: Document, loc: Location, request: Request | Entry, before: _Before
) -> Iterator[Problem]:
    for where, stop in walk.stops(request):
        yield from _earlier(document, (*loc, *where), stop.reply_of, before, single=True)
    if (ban := walk.ban(request)) is not None:
        where = (*loc, "sampling", "logit_bias", "ban_first_of")
        yield from _earlier(document, where, ban.ban_first_of, before)


def _earlier(
    document: Document,
    loc: Location,
    name: str,
    before: _Before,
    *,
    known: bool = False,
    single: bool = False,
) -> Iterator[Problem]:
    """A name must be that of requests above; `known`: of planned prompts; `single`: of one request."""
    if name not in before.counts:
        legal = ", ".join(before.counts) or "none was sent before"
        yield document.problem(loc, f"no step above is called {name!r}", legal)
    elif known and name in before.unknown:
        yield document.problem(loc, f"the prompts of {name!r} are not known beforehand", "another step")
    elif single and before.counts[name] != 1:
        message = f"{name!r} has {before.counts[name]} requests, and one reply is needed"
        yield document.problem(loc, message, "a send, or an entry of one request")


def _running(document: Document, loc: Location, name: str, before: _Before) -> Iterator[Problem]:
    if name not in before.started:
        legal = ", ".join(before.started) or "none is running here"
        yield document.problem(loc, f"no step called {name!r} was started and goes on", legal)


def _loops(spec: Spec, document: Document) -> Iterator[Problem]:
    for i, step in enumerate(spec.steps):
        if not isinstance(step, Loop):
            continue
        joined = {inner.join for inner in step.steps if isinstance(inner, Join)}
        for j, inner in enumerate(step.steps):
            loc: Location = ("steps", i, "steps", j)
            if isinstance(inner, Loop):
                yield document.problem(loc, "a loop stands in a loop", "one loop after another")
            if isinstance(inner, Start) and inner.start not in joined:
                message = f"{inner.start!r} is started in a loop and not joined in it"
                yield document.problem(loc, message, f"join: {inner.start}")

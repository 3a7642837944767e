"""A verdict as pytest's outcome: passed, skipped with the reason, or failed with everything there is to see.

Knows which verdict becomes which outcome (requirements, Verdicts) and what every item carries to the report.
Does not know how the verdict was reached, and prints nothing itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.connecting import parse_address
from conformance.history import PlannedRequest, Workload
from conformance.known import Known
from conformance.rendering import rendering_of
from conformance.report.footer import curl_line, replay_line, start_lines
from conformance.report.terminal import Entry, facts_line, skip_reason, verdict_text
from conformance.requirements import Level, get
from conformance.session import Options
from conformance.spec import Spec
from conformance.verdict import Status, Verdict

_SKIPPED = {Status.UNOBSERVABLE, Status.NOT_CLAIMED, Status.NOT_RUN}


class ItemFailure(Exception):
    """A failed item; the message is all that the user gets to see."""


def conclude(
    verdict: Verdict, workload: Workload | None, options: Options, text: str, known: Known | None = None
) -> None:
    """Return for a pass; raise pytest's skip or ItemFailure(text) for everything else.

    What was known to deviate is an expected failure, and fails the item once it passes.
    """
    if known is not None and verdict.status is known.verdict:
        raise pytest.xfail.Exception(f"{known.says} [{skip_reason(verdict)}]")
    if verdict.status is Status.PASS:
        if known is not None:
            raise ItemFailure(news(verdict, known))
        return
    if verdict.status in _SKIPPED or _is_tolerated(verdict, workload, options):
        # The place of a skip is the expectation in its file, not this line.
        raise pytest.skip.Exception(skip_reason(verdict), _use_item_location=True)
    raise ItemFailure(text)


def news(verdict: Verdict, known: Known) -> str:
    """What to do about a deviation that went away."""
    passes = f"{verdict.requirement} passes, and {known.place} expects {known.verdict}"
    reason = f"  it says   {known.entry.reason} ({known.entry.link})"
    return f"{passes}: good news, delete the entry\n{reason}"


def _is_tolerated(verdict: Verdict, workload: Workload | None, options: Options) -> bool:
    if verdict.status is Status.INCONCLUSIVE:
        return options.allow_inconclusive
    is_quality = verdict.status is Status.FAIL and get(verdict.requirement).level is Level.SHOULD
    return is_quality and not options.should and not _is_ours(workload)


def _is_ours(workload: Workload | None) -> bool:
    facts = workload.facts.get("main") if workload else None
    return facts is not None and facts.dialect == "engine"


def properties(
    spec: Spec, verdict: Verdict, workload: Workload | None, history: Path, known: str = ""
) -> list[tuple[str, str]]:
    """What reports carry about an item; plain words, which survive xdist and reach JUnit."""
    facts = workload.facts.get("main") if workload else None
    return [
        ("spec", spec.id),
        ("requirement", verdict.requirement),
        ("level", str(get(verdict.requirement).level)),
        ("verdict", str(verdict.status)),
        ("reason", verdict.reason or verdict.witness),
        ("known", known),
        ("target", facts_line(facts) if facts else ""),
        ("history", str(history)),
    ]


def entry_of(found: dict[str, str]) -> Entry:
    """The line of the end table that an item's properties make."""
    status = Status(found["verdict"])
    on, known = found.get("on", ""), found.get("known", "")
    return Entry(found["spec"], found["requirement"], status, known or found["reason"], on=on, known=known)


def failure_text(
    spec: Spec, verdict: Verdict, workload: Workload | None, node_id: str, history: Path, options: Options
) -> str:
    """Requirement, expected, observed, witness, then the lines to paste."""
    curl = _curl(verdict, workload, history.parent / "requests", options)
    return verdict_text(verdict, f"{spec.id}: {spec.title}", [*curl, replay_line(node_id, history)])


def _curl(verdict: Verdict, workload: Workload | None, folder: Path, options: Options) -> list[str]:
    plan = _culprit(verdict, workload)
    if plan is None or workload is None or "main" not in workload.facts:
        return []
    facts, url = workload.facts["main"], parse_address(options.url).url
    asked = rendering_of(facts)
    curl = curl_line(url + asked.route(plan), asked.encoded(plan), folder, options.access)
    return [*start_lines(facts, url), curl]


def _culprit(verdict: Verdict, workload: Workload | None) -> PlannedRequest | None:
    """The request that the verdict names, else the first one."""
    plans = [outcome.plan for outcome in workload.outcomes] if workload else []
    named = [plan for plan in plans if plan.id == verdict.request]
    return next(iter([*named, *plans]), None)

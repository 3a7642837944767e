"""A verdict as pytest's outcome: passed, skipped with the reason, or failed with everything there is to see.

Knows which verdict becomes which outcome (requirements, Verdicts) and what every item carries to the report.
Does not know how the verdict was reached, and prints nothing itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.history import PlannedRequest, Workload
from conformance.report.footer import completion_body, curl_line, replay_line, route_of, start_lines
from conformance.report.terminal import Entry, facts_line, skip_reason, verdict_text
from conformance.requirements import Level, get
from conformance.session import Options
from conformance.spec import Spec
from conformance.verdict import Status, Verdict

_SKIPPED = {Status.UNOBSERVABLE, Status.NOT_CLAIMED, Status.NOT_RUN}


class ItemFailure(Exception):
    """A failed item; the message is all that the user gets to see."""


def conclude(verdict: Verdict, workload: Workload | None, options: Options, text: str) -> None:
    """Return for a pass; raise pytest's skip or ItemFailure(text) for everything else."""
    if verdict.status is Status.PASS:
        return
    if verdict.status in _SKIPPED or _is_tolerated(verdict, workload, options):
        # The place of a skip is the expectation in its file, not this line.
        raise pytest.skip.Exception(skip_reason(verdict), _use_item_location=True)
    raise ItemFailure(text)


def _is_tolerated(verdict: Verdict, workload: Workload | None, options: Options) -> bool:
    if verdict.status is Status.INCONCLUSIVE:
        return options.allow_inconclusive
    is_quality = verdict.status is Status.FAIL and get(verdict.requirement).level is Level.SHOULD
    return is_quality and not options.should and not _is_ours(workload)


def _is_ours(workload: Workload | None) -> bool:
    facts = workload.facts.get("main") if workload else None
    return facts is not None and facts.dialect == "engine"


def properties(
    spec: Spec, verdict: Verdict, workload: Workload | None, history: Path
) -> list[tuple[str, str]]:
    """What reports carry about an item; plain words, which survive xdist and reach JUnit."""
    facts = workload.facts.get("main") if workload else None
    return [
        ("spec", spec.id),
        ("requirement", verdict.requirement),
        ("level", str(get(verdict.requirement).level)),
        ("verdict", str(verdict.status)),
        ("reason", verdict.reason or verdict.witness),
        ("target", facts_line(facts) if facts else ""),
        ("history", str(history)),
    ]


def entry_of(found: dict[str, str]) -> Entry:
    """The line of the end table that an item's properties make."""
    return Entry(found["spec"], found["requirement"], Status(found["verdict"]), found["reason"])


def failure_text(
    spec: Spec, verdict: Verdict, workload: Workload | None, node_id: str, history: Path, url: str
) -> str:
    """Requirement, expected, observed, witness, then the lines to paste."""
    curl = _curl(verdict, workload, history.parent / "requests", url)
    return verdict_text(verdict, f"{spec.id}: {spec.title}", [*curl, replay_line(node_id, history)])


def _curl(verdict: Verdict, workload: Workload | None, folder: Path, url: str) -> list[str]:
    plan = _culprit(verdict, workload)
    if plan is None or workload is None or "main" not in workload.facts:
        return []
    facts = workload.facts["main"]
    curl = curl_line(url + route_of(plan), completion_body(plan, facts), folder)
    return [*start_lines(facts, url), curl]


def _culprit(verdict: Verdict, workload: Workload | None) -> PlannedRequest | None:
    """The request that the verdict names, else the first one."""
    plans = [outcome.plan for outcome in workload.outcomes] if workload else []
    named = [plan for plan in plans if plan.id == verdict.request]
    return next(iter([*named, *plans]), None)

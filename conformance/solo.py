"""Solo runs: each request once more, alone and cold, for judges to compare with.

Knows which runs a session has already. Does not know what they are compared with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from conformance.history import Facts, Outcome, PlannedRequest
from conformance.launch import COMMAND
from conformance.record import Recorder
from conformance.sending import trouble
from conformance.target import Target

Solos = dict[str, list[Outcome]]
"""Solo runs by request key and facts of the server, for the whole session."""

IDLE = 60.0
"""Seconds that a target gets to become idle."""


def run_solos(
    wanted: Mapping[str, PlannedRequest],
    cache: Solos,
    cold: Target,
    recorder: Recorder,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Each key once a session, one of the workload twice; returns what the span tells."""
    cold.idle(min(IDLE, cold.options.timeout))
    # Another model, grid or storage computes other bits: never a reference for this one.
    known = {key: cache.setdefault(_reference(cold, request), []) for key, request in wanted.items()}
    doubled = next((key for key, runs in known.items() if len(runs) > 1), next(iter(known)))
    for number, (key, runs) in enumerate(known.items()):
        tell(f"solo runs: {number} of {len(wanted)}")
        while len(runs) < (2 if key == doubled else 1):
            outcome = _solo(wanted[key], len(runs), cold, recorder)
            if said := trouble(cold, [outcome]):
                recorder.trouble(f"solo run of {outcome.id}: {said}")
                return {"trouble": said}
            runs.append(outcome)
        for outcome in runs:
            recorder.solo(key, outcome)
    return {"runs": len(wanted)}


def _solo(request: PlannedRequest, number: int, cold: Target, recorder: Recorder) -> Outcome:
    alone = request.model_copy(update={"salt": f"{request.salt}-solo-{request.key}-{number}"})
    exchange = cold.exchange(alone, cold=True, clock=recorder.now)
    return cold.parse(exchange.run(), alone, "solo")


def _reference(cold: Target, request: PlannedRequest) -> str:
    """Names what a run alone depends on; of a reload only where an adapter is asked for."""
    weights = f"-{cold.reloads}" if request.adapter and cold.reloads else ""
    return _facts(cold.facts, request.key) + weights


def _facts(facts: Facts, key: str) -> str:
    # The command differs where the server does not: a profile may only change what is shared.
    known = facts.model_dump_json(exclude={"machine": {COMMAND}})
    return hashlib.sha256(f"{known}{key}".encode()).hexdigest()[:16]

"""A plan as data: the steps of one arm of one workload, with every request that can be known beforehand.

Knows what the driver needs. Does not know how a plan is made (`plan.py`, `requesting.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from conformance.drafts import Draft
from conformance.history import PlannedRequest
from conformance.spec import Arm, Serve, Step

Kind = Literal[
    "send", "burst", "series", "turns", "start", "join", "when", "repeat", "churn", "wait", "mark", "reset",
    "reload", "overwrite", "hold", "fail",
]  # fmt: skip


@dataclass(frozen=True)
class PlannedStep:
    """One step, or one round of a step in a loop.

    A request with a draft at its place waits for replies: it has no prompt before (`drafts.completed`). Steps
    without a name of their own are called `wait[3]`, `reset[3]`: no spec can give such a name.
    """

    kind: Kind
    name: str
    requests: tuple[PlannedRequest, ...] = ()
    drafts: Mapping[int, Draft] = field(default_factory=dict)
    wait: Literal["idle"] | float | None = None
    together: bool = False
    """Whether the requests are sent at one moment, and not each after the last one ended."""
    stagger: float = 0.0
    """Seconds between one send and the next of those that are sent together."""
    says: Step | None = None
    """The step of the spec, for what is more than requests."""
    round: int | None = None


@dataclass(frozen=True)
class Plan:
    """Everything the driver needs for one arm of one (spec, rung)."""

    spec_id: str
    rung: str
    digest: str
    serve: Serve
    arms: Mapping[str, Arm]
    steps: tuple[PlannedStep, ...]
    solo_steps: frozenset[str] = field(default=frozenset())
    memory: bool = False
    """Whether a judge looks at the footprint of the process: to read it all the time has its price."""

    def is_solo(self, request: PlannedRequest) -> bool:
        """Whether a judge compares it with its solo run."""
        return bool(self.solo_steps & {request.step, request.group})

    @property
    def solos(self) -> list[PlannedRequest]:
        """Requests to run alone, each key once, in order; those that wait for replies are not known yet."""
        known = [
            request
            for step in self.steps
            for place, request in enumerate(step.requests)
            if place not in step.drafts and self.is_solo(request)
        ]
        first: dict[str, PlannedRequest] = {}
        for request in known:
            first.setdefault(request.key, request)
        return list(first.values())

"""What a session asks of the half of the harness that talks to servers.

Knows the shape of a fleet, a target and a driver, as far as a run needs them. Does not know how any of them
is made (`backend.py`): so a session is tested, and a history judged again, without a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from conformance.history import Facts, Outcome, PlannedRequest
from conformance.plan import Plan, Vocabulary
from conformance.record import Recorder
from conformance.spec import Serve

Solos = dict[str, list[Outcome]]
"""Solo runs by request key, kept for the whole session: one cold run serves every spec that asks for it."""


class TargetLike(Protocol):
    @property
    def facts(self) -> Facts: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    def sample(self) -> dict[str, float]: ...
    def has_cold(self) -> bool: ...


class FleetLike(Protocol):
    """Where targets come from. `for_serve` raises Unobservable or an error that says why there is none."""

    def for_serve(self, serve: Serve) -> AbstractContextManager[TargetLike]: ...
    def per_token(self) -> float: ...
    def close(self) -> None: ...


class DriverLike(Protocol):
    def run(self, plan: Plan) -> None: ...
    def run_solos(self, requests: Sequence[PlannedRequest], cache: Solos) -> None: ...


class Back(Protocol):
    """The half of the harness that talks to servers."""

    errors: tuple[type[Exception], ...]
    """What it raises when there is no server to talk to; the message says why."""

    def open(self) -> FleetLike: ...
    def driver(self, target: Any, recorder: Recorder, arm: str) -> DriverLike: ...

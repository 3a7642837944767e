"""The half of the harness that talks to servers, as `session.py` asks for it.

Knows which classes those are. Does not know specs, verdicts or pytest; imported only when a server is needed.
"""

from __future__ import annotations

from collections.abc import Callable

from conformance.dialect import DialectError
from conformance.drive import Driver
from conformance.record import Recorder
from conformance.target import Fleet, Target, TargetError, TargetOptions, open_target


class Backend:
    """Targets as `options` say, and drivers that report their progress."""

    errors: tuple[type[Exception], ...] = (TargetError, DialectError)

    def __init__(self, options: TargetOptions, progress: Callable[[str], None]) -> None:
        self._options, self._progress = options, progress

    def open(self) -> Fleet:
        """Where targets come from; nothing is contacted or started yet."""
        return open_target(self._options)

    def driver(self, target: Target, recorder: Recorder, arm: str) -> Driver:
        return Driver(target, recorder, self._progress, arm)

"""The half of the harness that talks to servers, as `session.py` asks for it.

Knows which classes those are. Does not know specs, verdicts or pytest; imported only when a server is needed.
"""

from __future__ import annotations

from conformance.dialect import DialectError
from conformance.drive import Driver
from conformance.fleet import Fleet, open_target
from conformance.record import Recorder
from conformance.target import Target, TargetError, TargetOptions


class Backend:
    """Targets as `options` say, and drivers that report their progress where those say."""

    errors: tuple[type[Exception], ...] = (TargetError, DialectError)

    def __init__(self, options: TargetOptions) -> None:
        self._options = options

    def open(self) -> Fleet:
        """Where targets come from; nothing is contacted or started yet."""
        return open_target(self._options)

    def driver(self, target: Target, recorder: Recorder, arm: str) -> Driver:
        return Driver(target, recorder, self._options.progress, arm)

"""Lines in the middle of a run: who the target is, what is waited for.

Knows pytest's terminal and its capture. Does not know what a line is about.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

import pytest

EVERY = 20.0
"""Seconds without a sign of life that a log bears."""


class Announcer:
    """Writes past pytest's capture; silent on an xdist worker, which has no terminal."""

    def __init__(self, config: pytest.Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock, self._last = config, clock, clock()

    def tell(self, line: str) -> None:
        """A line that stays."""
        self._last = self._clock()
        self._write(f"\n{line}\n")

    def progress(self, line: str) -> None:
        """A line that the next one replaces; in a log one that stays, at most one in EVERY seconds."""
        if getattr(self._terminal, "isatty", False):
            self._write(f"\r\x1b[K{line}")
        elif self._clock() - self._last >= EVERY:
            self.tell(line)

    @property
    def _terminal(self) -> pytest.TerminalReporter | None:
        found: pytest.TerminalReporter | None = self._config.pluginmanager.getplugin("terminalreporter")
        return found

    def _write(self, text: str) -> None:
        capture = self._config.pluginmanager.getplugin("capturemanager")
        terminal = self._terminal
        if terminal is None or hasattr(self._config, "workerinput"):
            return
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            terminal.write(text, flush=True)

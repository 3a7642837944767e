"""An engine without its thread: whoever holds it says when the next step happens.

Knows the worker and its inbox. Does not know HTTP, or what is asked of it. Everything runs in the calling
thread, so that the same requests at the same steps give the same events, on every machine: for exploration,
where a failure must come back while it is made smaller.
"""

from __future__ import annotations

import queue
from functools import cache
from typing import Any

from engine import cores, memory
from engine.build import Parts
from engine.config import EngineConfig
from engine.testmode import RehearsalWorker

_bound, _take_turns = cache(memory.bound_cache), cache(cores.take_turns)
"""Once for a process: whoever explores opens thousands of engines."""


class SteppedWorker(RehearsalWorker):
    """A worker in test mode that is opened and turned by hand. For use from one thread."""

    def __init__(self, config: EngineConfig, parts: Parts | None = None) -> None:
        """Loads the model. Raises ModelError when it cannot be loaded."""
        super().__init__(config, parts)
        _bound()
        _take_turns()
        self._open()
        scheduler: Any = self._engine.scheduler
        scheduler.pause = 0.0  # nobody waits here for the moment at which a hold ends

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs, or was asked since the last turn."""
        return self._engine.scheduler.busy or not self._inbox.empty()

    def turn(self) -> None:
        """What the thread does between two looks at its inbox: what was asked, one step, then the news."""
        self._take()
        if self._engine.scheduler.busy:
            self._engine.scheduler.step()
        self._publish()
        self._deliver()

    def _take(self) -> None:
        while True:
            try:
                self._inbox.get_nowait()()
            except queue.Empty:
                return

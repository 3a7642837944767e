"""How the threads of one engine share a core.

Knows the operating system's scheduling. Does not know what the threads do.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def take_turns() -> None:
    """Where this thread has one core: it, and those that it starts, give way when they wait and not before.

    MLX hands every operation to a thread of its own. Woken on the same core, that thread would take the core
    from the one that is about to hand over the next: 36 switches for ten additions, instead of 2, and twice
    the time (docs/decisions/0011). Does nothing elsewhere, nor where it is not allowed.
    """
    if sys.platform == "linux" and len(os.sched_getaffinity(0)) == 1:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

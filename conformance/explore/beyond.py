"""What the explorer does not show in process, and why: the faults that it is not owed.

Knows names of faults and reasons. Does not know the engine, or how a workload is made up.
"""

from __future__ import annotations

_MEMORY = "it shows in the memory of a process alone, and nothing measures that in process"

BEYOND = {
    "copy_pool_on_growth": _MEMORY,
    "copy_rows_on_adopt": _MEMORY,
    "ignore_reset_while_waiting": "no workload resets the cache while a request waits in the queue",
    "keep_rows_of_the_gone": _MEMORY,
    "keep_slabs_after_reset": _MEMORY,
    "never_store_what_failed": "no workload sends a prompt that failed a third time",
    "no_cached_count_when_whole": "it shows in the body of an HTTP reply alone, and in process there is none",
    "wait_for_readers": "it shows beside a client that stops reading its socket, and there is none",
}
"""Fault -> why no workload shows it there."""

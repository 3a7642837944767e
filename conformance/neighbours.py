"""Other plugins of the same pytest run, and what this one asks of them.

Knows how xdist hands out work, and what Hypothesis' plugin does at the end of a run. Does not know specs or
reports.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from conformance.options import by_fault, how_of
from conformance.workers import fault_of, workload_of


def scheduler(config: pytest.Config, log: Any) -> Any:
    """xdist's, that keeps items of one workload on one worker: each other one would perform it again."""
    from xdist.scheduler.loadgroup import LoadGroupScheduling  # type: ignore[import-untyped]

    class WorkloadScheduling(LoadGroupScheduling):  # type: ignore[misc]
        # By node id: the marks of loadgroup reach a controller only with some versions of pytest and xdist.
        def _split_scope(self, nodeid: str) -> str:
            own = fault_of(nodeid) if by_fault(config) else ""
            shared = how_of(config) == "endpoint"
            return own or workload_of(nodeid, shared) or str(super()._split_scope(nodeid))

        def _reschedule(self, node: Any) -> None:
            # One workload ahead is enough, for they take seconds: what is queued behind a long one waits. A
            # crash brings back workloads of which nothing is left to do, so one more may be none.
            while self.workqueue and self._lacks_work(node):
                super()._reschedule(node)
            if not self.workqueue:
                super()._reschedule(node)

        def _lacks_work(self, node: Any) -> bool:
            return not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2

    return WorkloadScheduling(config, log)


def spare_hypothesis(config: pytest.Config) -> None:
    """For a run without tests of Hypothesis: its plugin loads all of it, which takes a second or two, to say
    at the end what became of them."""
    plugin = config.pluginmanager.get_plugin("hypothesispytest")
    if plugin is not None and "hypothesis" not in sys.modules:
        config.pluginmanager.unregister(plugin)

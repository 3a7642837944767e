"""What a run that ended early left unjudged: after Ctrl-C, -x or --maxfail, or because its server was gone.

Knows which items were collected and which were reported, here or by the workers of xdist. Does not know what
any of them found (`tally.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

_OURS = (".yaml", ".yml", "conformance/test_specs.py")
"""How the files of this suite's items end."""


class Early:
    """Follows a run where its reports arrive: the one process, or the xdist controller."""

    def __init__(self) -> None:
        self._collected: set[str] = set()
        self._judged: set[str] = set()
        self._why = ""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._collect(ids)

    def _collect(self, ids: Iterable[str]) -> None:
        self._collected |= {_plain(id_) for id_ in ids if id_.partition("::")[0].endswith(_OURS)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._judged.add(_plain(report.nodeid))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._why = str(excinfo.value) or "Ctrl-C"

    def ended(self, stopped: str | bool) -> dict[str, Any] | None:
        """Why (`stopped`: what pytest says), and how many of its items were not judged; None if all were."""
        left = len(self._collected - self._judged)
        why = self._why or str(stopped or "an error outside of the items")
        return {"why": why, "not_judged": left, "items": len(self._collected)} if left else None


def line(ended: dict[str, Any]) -> str:
    """What the end of a run says of it."""
    left = f"{ended['not_judged']} of {ended['items']} items were not judged"
    return f"interrupted ({ended['why']}): {left}; nothing here speaks of them"


def _plain(nodeid: str) -> str:
    return nodeid.partition("@")[0]  # xdist appends the group

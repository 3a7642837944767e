"""What the reports of a run add up to: the table at the end, and whether enough was judged.

Knows reports as plain properties, so it works the same on an xdist controller. Does not know items, specs or
judges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from conformance.conclude import entry_of
from conformance.mutation import Fate
from conformance.report.terminal import Entry, end_table, unjudged

MUSTS = ("adopt/1", "out/1", "count/1")
"""What a run must have judged at least, unless told otherwise (requirements, Verdicts)."""


@dataclass
class Tally:
    """Filled report by report."""

    entries: list[Entry] = field(default_factory=list)
    targets: dict[str, None] = field(default_factory=dict)
    """Facts lines in the order they came; one, unless cases were run in other profiles."""
    histories: dict[str, None] = field(default_factory=dict)

    fates: list[tuple[str, str, str]] = field(default_factory=list)
    """Of a run with faults: fault, fate, and by what it was killed or why not."""

    def add(self, report: pytest.TestReport) -> None:
        found = {name: str(value) for name, value in report.user_properties}
        if report.when == "call" and "fault" in found:
            self.fates.append((found["fault"], found["fate"], found["fault_summary"]))
        if report.when != "call" or not {"spec", "requirement", "verdict"} <= set(found):
            return
        self.entries.append(replace(entry_of(found), failed=report.failed))
        self.targets |= {found["target"]: None} if found["target"] else {}
        self.histories |= {found["history"]: None}

    def missing(self, asked: Iterable[str] | None, whole: bool) -> list[str]:
        """Which requirements nobody judged, of those asked for; by default of MUSTS.

        A run of a part of the suite (`whole` False) answers by default only for the MUSTs that it looked at.
        """
        touched = {entry.requirement for entry in self.entries}
        default = [must for must in MUSTS if whole or must in touched]
        return unjudged(self.entries, default if asked is None else asked)

    def lines(self, width: int) -> list[str]:
        """The end of the run: table, targets, where the history is and how to judge it again."""
        again = [f"judge again without a server: --replay={path}" for path in self.histories]
        table = end_table(self.entries, width).splitlines()
        return [*table, "", *self._fate_lines(), *self.targets, *again]

    def _fate_lines(self) -> list[str]:
        if not self.fates:
            return []
        wide = max(len(fault) for fault, _, _ in self.fates)
        lines = [f"{fault:<{wide}}  {fate:<8}  {summary}" for fault, fate, summary in sorted(self.fates)]
        killed = sum(fate == Fate.KILLED for _, fate, _ in self.fates)
        return [*lines, f"faults: {killed} of {len(self.fates)} (fault, spec) pairs killed", ""]

"""What the reports of a run add up to: the table at the end, and whether enough was judged.

Knows reports as plain properties, so it works the same on an xdist controller. Does not know items, specs or
judges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from conformance import kills
from conformance.conclude import entry_of
from conformance.report.matrix import columns_of, text
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
    items: list[dict[str, Any]] = field(default_factory=list)
    """Each judged expectation with its evidence, for reports."""
    expired: dict[str, None] = field(default_factory=dict)
    """What is to be told of expectations that are over."""
    broken: list[dict[str, str]] = field(default_factory=list)
    """Files that are no specs."""

    kills: list[dict[str, Any]] = field(default_factory=list)
    """Of a run with faults: what each spec found on each (`kills.py`)."""

    explored: list[dict[str, Any]] = field(default_factory=list)
    """Of a run that explores: what became of each fault, as `kills.py` reads it."""

    hunts: list[str] = field(default_factory=list)
    """Of a run that explores: what became of each fault, a line each."""

    def add(self, report: pytest.TestReport) -> None:
        found = {name: str(value) for name, value in report.user_properties}
        self._keep(report)
        if report.when == "call" and "fault_summary" in found:
            self.hunts.append(f"{found['fault']}  {found['fate']:<8}  {found['fault_summary']}")
        if report.when != "call" or not {"spec", "requirement", "verdict"} <= set(found):
            return
        self.entries.append(replace(entry_of(found), failed=report.failed))
        self.targets |= {found["target"]: None} if found["target"] else {}
        self.histories |= {found["history"]: None}
        self.expired |= {found["expired"]: None} if "expired" in found else {}

    def _keep(self, report: pytest.TestReport) -> None:
        evidence = getattr(report, "conformance", None)
        if report.when != "call" or evidence is None:
            return
        node = report.nodeid.partition("@")[0]  # xdist appends the group
        if "broken" in evidence:
            self.broken.append({"node": node, "text": evidence["broken"]})
        elif "kill" in evidence:
            self.kills.append({**evidence["kill"], "seconds": round(report.duration, 1)})
        elif "explored" in evidence:
            self.explored.append(evidence["explored"])
        else:
            word = "xfailed" if hasattr(report, "wasxfail") else report.outcome
            self.items.append({**evidence, "node": node, "outcome": word, "seconds": report.duration})

    def missing(self, asked: Iterable[str] | None, whole: bool) -> list[str]:
        """Which requirements nobody judged, of those asked for; by default of MUSTS.

        A run of a part of the suite (`whole` False) answers by default only for the MUSTs that it looked at.
        """
        return [word for label in self._labels() for word in self._missing_on(label, asked, whole)]

    def _missing_on(self, label: str, asked: Iterable[str] | None, whole: bool) -> list[str]:
        entries = [entry for entry in self.entries if entry.on == label]
        touched = {entry.requirement for entry in entries}
        default = [must for must in MUSTS if whole or must in touched]
        missing = unjudged(entries, default if asked is None else asked)
        return [f"{must} on {label}" if label else must for must in missing]

    def _labels(self) -> list[str]:
        """Of the targets; one without a name where nothing was judged."""
        return list(dict.fromkeys(entry.on for entry in self.entries)) or [""]

    def lines(self, width: int) -> list[str]:
        """The end of the run: table, targets, where the history is and how to judge it again."""
        again = [f"judge again without a server: --replay={path}" for path in self.histories]
        columns = columns_of(self.entries, {})
        shown = text(columns, width) if len(columns) > 1 else end_table(self.entries, width)
        table = shown.splitlines()
        return [*table, "", *self._kill_lines(), *self.expired, *self.targets, *again]

    def pairs_alive(self) -> list[str]:
        """Pairs of faults that no spec killed; of one fault alone the item says so itself."""
        return [name for name in kills.alive(self.kills) if "+" in name]

    def _kill_lines(self) -> list[str]:
        return [*kills.lines(self.kills), ""] if self.kills else self.hunts

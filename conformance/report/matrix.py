"""Requirements by targets: one table for several runs, as text, Markdown and JSON, and how much was judged.

Knows entries and the law's order. Does not know where the verdicts came from. A cell holds a verdict's word,
so that what was not judged stays as visible as what failed, and none of it looks like a pass.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from conformance.report.terminal import Entry, by_requirement, reason_of
from conformance.requirements import REQUIREMENTS, Level, Requirement, get
from conformance.verdict import Status

FORMAT = 1
"""Version of the JSON document."""

TEST_BUILD = "test build"
"""The word of the law (`only`) for what no other server can show."""

NOTHING = "-"
"""In a cell: no spec of these looks at the requirement on this target."""


@dataclass(frozen=True)
class Column:
    """One target: its label, the line about it, and every judged expectation."""

    label: str
    about: str
    entries: Sequence[Entry]
    files: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Share:
    """How much of one level of the law was judged on one target, in requirements."""

    claimed: int
    """Those that a spec is about, less those that the target's dialect does not claim, and less those that
    are about test builds alone where nothing was to be seen of them."""
    judged: int
    """Of these, the ones that pass or fail: every other verdict says why nothing was found out."""
    passed: int

    @property
    def percent(self) -> int | None:
        """Judged of claimed, rounded down, so that 100 means all of them; None where nothing is claimed."""
        return 100 * self.judged // self.claimed if self.claimed else None

    def __str__(self) -> str:
        return f"{self.judged} of {self.claimed}" + (f" ({self.percent} %)" if self.claimed else "")


LEVELS = (Level.MUST, Level.SHOULD)
"""What a server may claim; the rest is about the bundled engine alone."""


def share_of(entries: Sequence[Entry], level: Level) -> Share:
    """How much of a level was judged on the one target of these entries."""
    counts = _counts(entries, level)
    judged = counts[Status.PASS] + counts[Status.FAIL]
    return Share(counts.total() - _unclaimed(entries, level), judged, counts[Status.PASS])


def _unclaimed(entries: Sequence[Entry], level: Level) -> int:
    """Requirements that the target has no part in; what could be seen is judged wherever it is about."""
    found = ((get(id_), status) for id_, status in by_requirement(entries).items())
    return sum(_is_unclaimed(law, status) for law, status in found if law.level is level)


def _is_unclaimed(law: Requirement, status: Status) -> bool:
    return status is Status.NOT_CLAIMED or (law.only == TEST_BUILD and status is Status.UNOBSERVABLE)


def _counts(entries: Sequence[Entry], level: Level) -> Counter[Status]:
    return Counter(status for id_, status in by_requirement(entries).items() if get(id_).level is level)


def columns_of(entries: Sequence[Entry], about: Mapping[str, str]) -> list[Column]:
    """Columns from entries that name their target in `on`, by name; `about` holds the line for each."""
    labels = sorted({entry.on for entry in entries})  # workers report in any order
    return [Column(on, about.get(on, ""), [e for e in entries if e.on == on]) for on in labels]


def _cells(columns: Sequence[Column]) -> list[tuple[str, list[str]]]:
    """Requirement ids in the law's order, those that any column has, and a word for each column."""
    found = [by_requirement(column.entries) for column in columns]
    seen = [id_ for id_ in REQUIREMENTS if any(id_ in statuses for statuses in found)]
    return [(id_, [str(statuses.get(id_, NOTHING)) for statuses in found]) for id_ in seen]


def text(columns: Sequence[Column], width: int) -> str:
    """The matrix for a terminal, then a line a target."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in ("requirement", "level", *(column.label for column in columns)):
        table.add_column(header)
    for id_, words in _cells(columns):
        table.add_row(id_, get(id_).level, *words)
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(table)
    rows = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join([*rows, "", *(f"{c.label}: {share(c.entries)}" for c in columns)])


def share(entries: Sequence[Entry]) -> str:
    """How many of the MUSTs and SHOULDs that a target claims were judged, and what became of each."""
    told = [_told(entries, level) for level in LEVELS if _counts(entries, level)]
    return "; ".join(told) or "no MUST and no SHOULD was looked at"


def _told(entries: Sequence[Entry], level: Level) -> str:
    found, counts = share_of(entries, level), _counts(entries, level)
    rest = [f"{counts[s]} {s}" for s in Status if counts[s] and s is not Status.PASS]
    judged = f"{found.judged} of {found.claimed} claimed {level}s judged"
    percent = [f"{found.percent} %"] if found.claimed else []
    return ", ".join([judged, *percent, f"{found.passed} pass", *rest])


def markdown(columns: Sequence[Column]) -> str:
    """The matrix, then a section a target: who it is, and why each requirement did not pass."""
    head = ["requirement", "level", *(column.label for column in columns)]
    rows = [[id_, get(id_).level, *words] for id_, words in _cells(columns)]
    table = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    parts = [*table, "", *_shares(columns), *(line for column in columns for line in _section(column))]
    return "\n".join(parts) + "\n"


def _shares(columns: Sequence[Column]) -> list[str]:
    """How much was judged, two rows a level."""
    head = ["", *(column.label for column in columns)]
    rows = [row for level in LEVELS for row in _share_rows(columns, level)]
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _share_rows(columns: Sequence[Column], level: Level) -> list[list[str]]:
    found = [share_of(column.entries, level) for column in columns]
    passed = [str(one.passed) for one in found]
    return [[f"claimed {level}s judged", *map(str, found)], ["of these pass", *passed]]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(words: str) -> str:
    """One line of plain text: what a server says must not become markup."""
    for sign, said in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("`", "\\`")):
        words = words.replace(sign, said)
    return " ".join(words.split())


def _section(column: Column) -> list[str]:
    lines = ["", f"## {column.label}", "", *([_cell(column.about), ""] if column.about else [])]
    lines += [f"From {', '.join(column.files)}: {share(column.entries)}."]
    lines += [f"Note: {_cell(note)}." for note in column.notes]
    why = _reasons(column)
    table = [_row(["requirement", "verdict", "what it says"]), _row(["---"] * 3), *map(_row, why)]
    return [*lines, "", *table] if why else lines


def _reasons(column: Column) -> list[list[str]]:
    """What did not pass, with the first reason."""
    statuses = by_requirement(column.entries)
    loud = [id_ for id_ in REQUIREMENTS if statuses.get(id_, Status.PASS) is not Status.PASS]
    return [[id_, statuses[id_], reason_of(column.entries, id_, statuses[id_])] for id_ in loud]


def as_json(columns: Sequence[Column]) -> dict[str, Any]:
    """The document: targets and how much was judged, per requirement the verdict of each and why."""
    return {
        "format": FORMAT,
        "targets": [_target(column) for column in columns],
        "requirements": [_requirement(id_, columns) for id_, _ in _cells(columns)],
    }


def _target(column: Column) -> dict[str, Any]:
    told = {"label": column.label, "about": column.about}
    return {
        **told,
        "files": list(column.files),
        "notes": list(column.notes),
        "shares": shares(column.entries),
    }


def shares(entries: Sequence[Entry]) -> dict[str, dict[str, int | None]]:
    """By level: claimed, judged, passed and percent, as numbers."""
    found = {str(level): share_of(entries, level) for level in LEVELS}
    return {level: {**asdict(one), "percent": one.percent} for level, one in found.items()}


def _requirement(id_: str, columns: Sequence[Column]) -> dict[str, Any]:
    law = get(id_)
    verdicts = {column.label: verdict_of(column.entries, id_) for column in columns}
    return {"id": id_, "level": str(law.level), "sentence": law.sentence, "verdicts": verdicts}


def verdict_of(entries: Sequence[Entry], id_: str) -> dict[str, Any] | None:
    """One requirement on one target; None where nothing looks at it."""
    status = by_requirement(entries).get(id_)
    if status is None:
        return None
    counts = Counter(str(entry.status) for entry in entries if entry.requirement == id_)
    return {"verdict": str(status), "items": dict(counts), "reason": reason_of(entries, id_, status)}

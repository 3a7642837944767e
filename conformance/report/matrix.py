"""Requirements by targets: one table for several runs, as text, Markdown and JSON.

Knows entries and the law's order. Does not know where the verdicts came from. A cell holds a verdict's word,
so that what was not judged stays as visible as what failed, and none of it looks like a pass.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from conformance.report.terminal import Entry, by_requirement, reason_of
from conformance.requirements import REQUIREMENTS, Level, get
from conformance.verdict import Status

FORMAT = 1
"""Version of the JSON document."""

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
    """How many of the MUSTs that a target claims were judged, and how many of those pass."""
    counts = Counter(status for id_, status in by_requirement(entries).items() if _is_must(id_))
    claimed = counts.total() - counts[Status.NOT_CLAIMED]
    judged = counts[Status.PASS] + counts[Status.FAIL]
    rest = [f"{counts[s]} {s}" for s in Status if counts[s] and s not in (Status.PASS, Status.FAIL)]
    parts = [f"{judged} of {claimed} claimed MUSTs judged", f"{counts[Status.PASS]} pass"]
    return ", ".join([*parts, *([f"{counts[Status.FAIL]} fail"] if counts[Status.FAIL] else []), *rest])


def _is_must(id_: str) -> bool:
    return get(id_).level is Level.MUST


def markdown(columns: Sequence[Column]) -> str:
    """The matrix, then a section a target: who it is, and why each requirement did not pass."""
    head = ["requirement", "level", *(column.label for column in columns)]
    rows = [[id_, get(id_).level, *words] for id_, words in _cells(columns)]
    table = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return "\n".join([*table, *(line for column in columns for line in _section(column))]) + "\n"


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
    """The document: targets, and per requirement the verdict of each with counts and reason."""
    targets = [
        {"label": c.label, "about": c.about, "files": list(c.files), "notes": list(c.notes)} for c in columns
    ]
    return {
        "format": FORMAT,
        "targets": targets,
        "requirements": [_requirement(id_, columns) for id_, _ in _cells(columns)],
    }


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

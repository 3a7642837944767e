"""A run as one JSON document and as one page: what was judged, on what evidence, and what was not.

Knows items as plain values and histories on disk. Does not know pytest. Every verdict keeps its own word:
nothing that was not judged is counted as a pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from conformance import early
from conformance.archive import Archive
from conformance.record import HistoryError
from conformance.report import matrix
from conformance.report.terminal import Entry, facts_line
from conformance.report.timeline import Timeline, timelines
from conformance.verdict import Status

FORMAT = 1
"""Version of the JSON document."""

Item = Mapping[str, Any]
"""What `collect.py` says of one judged expectation, with `node`, `outcome` and `seconds` of the report."""


@dataclass(frozen=True)
class Result:
    """A run that is over."""

    items: Sequence[Item]
    broken: Sequence[Mapping[str, str]] = ()
    """Files that are no specs: `node` and `text`."""
    not_judged: Sequence[str] = ()
    green: bool = True
    interrupted: Mapping[str, Any] | None = None
    """Of a run that ended early: `why`, and how many of its `items` were `not_judged`."""
    made: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def entries(self) -> list[Entry]:
        return [_entry(item) for item in self.items]

    def columns(self) -> list[matrix.Column]:
        return matrix.columns_of(self.entries(), {item["on"]: item["target"] for item in self.items})

    def histories(self) -> list[Path]:
        return [Path(path) for path in dict.fromkeys(item["history"] for item in self.items)]


def _entry(item: Item) -> Entry:
    reason = item["known"] or item["reason"] or item["witness"]
    failed = item["outcome"] == "failed"
    return Entry(
        item["spec"], item["requirement"], Status(item["verdict"]), reason, failed, item["on"], item["known"]
    )


def as_json(result: Result) -> str:
    """The document. Its `items` hold a verdict each; `requirements` what they add up to on each target."""
    summary = matrix.as_json(result.columns())
    document = {
        "format": FORMAT,
        "made": result.made,
        "green": result.green,
        "not_judged": list(result.not_judged),
        "interrupted": dict(result.interrupted) if result.interrupted else None,
        "targets": list(_targets(result)),
        "requirements": summary["requirements"],
        "items": list(result.items),
        "broken": list(result.broken),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _targets(result: Result) -> Iterator[dict[str, Any]]:
    """Who was measured: label, the line about it, its facts as recorded, where from, how much was judged."""
    for column in result.columns():
        files = list(dict.fromkeys(item["history"] for item in result.items if item["on"] == column.label))
        facts = next((a.facts for a in _archives(map(Path, files)) if a.facts), None)
        yield {
            "label": column.label,
            "about": facts_line(facts) if facts else column.about,
            "facts": facts.model_dump(mode="json") if facts else None,
            "histories": files,
            "shares": matrix.shares(column.entries),
        }


def _archives(paths: Iterable[Path]) -> Iterator[Archive]:
    """Those histories that are there and can be read: a report must not fail because a run did."""
    for path in paths:
        try:
            yield Archive(path)
        except HistoryError:
            continue


def as_html(result: Result) -> str:
    """One page that needs nothing beside it."""
    # What a server said stands in it: everything is escaped.
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return found.get_template("page.html.j2").render(
        result=result,
        ended=early.line,
        targets=list(_targets(result)),
        summary=matrix.as_json(result.columns()),
        shares={column.label: matrix.share(column.entries) for column in result.columns()},
        specs=_by_spec(result.items),
        drawings=_drawings(result),
    )


def _by_spec(items: Sequence[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item["spec"], []).append(item)
    return found


def _drawings(result: Result) -> Iterator[Timeline]:
    """Timelines of all workloads that were judged, read one by one while the page is written."""
    wanted = {(item["history"], item["spec"], item["rung"]) for item in result.items}
    for archive in _archives(result.histories()):
        for key in archive.places:
            if (str(archive.path), *key) in wanted:
                yield from _drawn(archive, key)


def _drawn(archive: Archive, key: tuple[str, str]) -> list[Timeline]:
    try:
        return list(timelines(archive.workload(key)))
    except HistoryError:
        return []

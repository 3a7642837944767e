"""Histories judged again without pytest: every expectation of every spec, target by target.

Knows specs, archives and the replaying session. Does not know how the result is shown. Golden outputs are
not compared here: that is a matter of review (`pytest --replay`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from conformance.archive import Archive, by_target
from conformance.backing import Back
from conformance.load import Loaded
from conformance.report.matrix import Column
from conformance.report.terminal import Entry, facts_line
from conformance.rungs import rungs
from conformance.session import Options, Session


def columns(paths: Sequence[Path], specs: Sequence[Loaded]) -> list[Column]:
    """A column for each target. Raises HistoryError for a file that is no history."""
    found = by_target(map(Archive, dict.fromkeys(paths)))
    return [_column(label, archives, specs) for label, archives in found.items()]


def _column(label: str, archives: list[Archive], specs: Sequence[Loaded]) -> Column:
    facts = next((archive.facts for archive in archives if archive.facts), None)
    return Column(
        label,
        facts_line(facts) if facts else "",
        list(_entries(label, archives, specs)),
        [str(archive.path) for archive in archives],
        [note for archive in archives for note in [*archive.notes, *_unknown(archive, specs)]],
    )


def _entries(label: str, archives: list[Archive], specs: Sequence[Loaded]) -> Iterator[Entry]:
    # A replay contacts nothing, so there is no half that talks to servers.
    session = Session(Options(how="replay", replay=_paths(archives)), cast(Back, None), archives=archives)
    for loaded in specs:
        for rung in rungs(loaded.spec):
            for expect in loaded.spec.expect:
                verdict = session.verdict(loaded, rung, expect)
                reason = verdict.reason or verdict.witness
                yield Entry(loaded.spec.id, expect.requirement, verdict.status, reason, on=label)


def _paths(archives: Sequence[Archive]) -> tuple[Path, ...]:
    return tuple(archive.path for archive in archives)


def _unknown(archive: Archive, specs: Sequence[Loaded]) -> list[str]:
    """What the file holds and nobody judges."""
    known = {loaded.spec.id for loaded in specs}
    strange = sorted({spec_id for spec_id, _ in archive.places} - known)
    return [f"{archive.path}: no spec here is called {', '.join(strange)}"] if strange else []

"""Whether a file of known deviations is about something that exists: a spec, an item of it, a rung.

Knows where specs are and what items they have. Does not know what an entry does to a verdict (`known.py`).
Names are looked up in the specs at hand, the shipped ones and those of a run; only what an entry is about is
loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from conformance.known import Known, read
from conformance.load import Loaded, did_you_mean, load_all
from conformance.marks import Document, Problem
from conformance.rungs import rungs

Item = tuple[str, str, str, str]
"""What an entry may narrow down, in the order of KEYS."""
KEYS = ("spec", "requirement", "expectation", "rung")

_ID = re.compile(r"""^id:\s*["']?([^\s"'#]+)""", re.MULTILINE)


def load(path: Path, specs: Sequence[Path]) -> list[Known]:
    """The entries of one file. Raises SpecError also for those that are about nothing in these spec files."""
    document, entries = read(path)
    ids = {_id_of(spec): spec for spec in specs}
    problems = [p for i, one in enumerate(entries) for p in _about_nothing(document, i, one, ids)]
    if problems:
        raise document.error(problems)
    return entries


def _id_of(spec: Path) -> str:
    """The id that a file says, without the time that it takes to load it; empty if it says none."""
    found = _ID.search(spec.read_text(encoding="utf-8-sig", errors="replace"))
    return found[1] if found else ""


def _about_nothing(document: Document, i: int, known: Known, ids: dict[str, Path]) -> Iterator[Problem]:
    """The first of its names that leaves no item for the entry to be about."""
    spec = known.entry.spec
    if spec is not None and spec not in ids:
        told = f"no spec is called {spec!r}{did_you_mean(spec, ids)}"
        yield document.problem(("known", i, "spec"), told, "an id as `python -m conformance list` tells it")
        return
    items = _items(_meant(known, ids))
    for place, key in enumerate(KEYS if items else ()):
        said = getattr(known.entry, key)
        legal = [word for word in dict.fromkeys(item[place] for item in items) if word]
        items = [item for item in items if said in (None, item[place])]
        if not items:
            told = f"{spec or known.entry.requirement} has no {key} {said!r}{did_you_mean(said, legal)}"
            yield document.problem(("known", i, key), told, ", ".join(legal) or "none, so leave it out")
            return


def _meant(known: Known, ids: dict[str, Path]) -> Iterable[Path]:
    """The files to look into: all where only the item's name says which; none where the law says enough."""
    entry = known.entry
    if entry.spec is not None:
        return [ids[entry.spec]]
    return ids.values() if entry.expectation is not None or entry.rung is not None else ()


def _items(paths: Iterable[Path]) -> list[Item]:
    """What can be judged; nothing where a file is broken, which is told of elsewhere."""
    found = list(load_all(paths))
    if not all(isinstance(one, Loaded) for one in found):
        return []
    specs = [one.spec for one in found if isinstance(one, Loaded)]
    return [(s.id, e.requirement, e.id, rung) for s in specs for e in s.expect for rung in rungs(s)]

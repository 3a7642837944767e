"""A history on disk, read one workload at a time: what is held in memory is an index.

Knows where in the file each workload and each prompt stands. Does not know what an event means (`record.py`)
or how it is judged. A file of hundreds of megabytes takes the memory of its largest workload.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from conformance.history import Facts, Workload
from conformance.record import HistoryError, Key, Recording, take

_BODY = re.compile(rb'\{"event":"(outcome|sample|memory|span|solo)",')
_PROMPT = re.compile(rb'\{"event":"prompt","digest":"([0-9a-f]+)",')
"""How the recorder begins lines that an index need not parse; they are most of a file."""


class Prompts(MutableMapping[str, dict[str, Any]]):
    """Prompts by digest, left in the file: most of a history is prompts."""

    def __init__(self, places: dict[str, tuple[int, int]]) -> None:
        self._places = places
        self.file: IO[bytes] | None = None
        self.at = (0, 0)
        """Offset and length in bytes of the line that is being taken in."""

    def __setitem__(self, digest: str, prompt: dict[str, Any]) -> None:
        self._places.setdefault(digest, self.at)

    def __getitem__(self, digest: str) -> dict[str, Any]:
        assert self.file is not None
        offset, length = self._places[digest]
        event = json.loads(os.pread(self.file.fileno(), length, offset))
        return {"prompt_ids": event["ids"], "prompt_text": event["text"]}

    def __delitem__(self, digest: str) -> None:
        del self._places[digest]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(frozen=True)
class Place:
    """Where a workload begins, and what was said before it."""

    offset: int
    line: int
    digest: str
    """Of the plan behind it: another digest means that the spec has changed since."""
    header: dict[str, Any]
    shared: dict[str, Facts]
    """Facts by arm that every workload of this part of the file starts from."""


class Archive:
    """One file. Raises HistoryError, here or when a workload is read, for what is no history."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: dict[Key, Place] = {}
        self.facts: Facts | None = None
        """Those of most workloads' main arms: who the target is, in the profile that most cases ran in."""
        self.notes: list[str] = []
        """What a reader should be told: where the file breaks off."""
        self._prompts = Prompts({})
        self._scan()

    def workload(self, key: Key) -> Workload:
        """The recorded facts about a (spec id, rung). Raises KeyError for one that the file does not hold."""
        try:
            return self._read(key, self.places[key])
        except OSError as error:
            raise HistoryError(f"{self.path}: cannot be read any more: {error}") from None

    def _read(self, key: Key, place: Place) -> Workload:
        seen = Recording(header=place.header, prompts=self._prompts, facts=dict(place.shared))
        with self.path.open("rb") as self._prompts.file:
            self._prompts.file.seek(place.offset)
            for number, line in enumerate(self._prompts.file, start=place.line):
                take(seen.apply, self.path, number, _text(self.path, number, line))
                if seen.current is not seen.workloads.get(key):
                    break
        made = seen.workloads[key]
        made.cut = made.cut or seen.current is not None
        return made

    def _scan(self) -> None:
        seen, number, line = Recording(prompts=self._prompts), 0, b""
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    self._index(seen, number, line)
        except OSError as error:
            raise HistoryError(f"{self.path}: cannot be read as a history: {error}") from None
        if not seen.header:
            raise HistoryError(f"{self.path}: empty, expected a history")
        self.facts = _usual([w.facts["main"] for w in seen.workloads.values() if "main" in w.facts])
        self._note_cuts(seen, number if line and not line.endswith(b"\n") else 0)

    def _index(self, seen: Recording, number: int, line: bytes) -> None:
        offset, length = sum(self._prompts.at), len(line)
        self._prompts.at = (offset, length)
        if seen.current is not None and line.endswith(b"\n") and self._is_known(line):
            return
        known = len(seen.workloads)
        take(seen.skim, self.path, number, _text(self.path, number, line))
        if len(seen.workloads) > known:
            key, digest = next(reversed(seen.digests.items()))
            self.places[key] = Place(offset, number, digest, seen.header, dict(seen.facts))

    def _is_known(self, line: bytes) -> bool:
        if prompt := _PROMPT.match(line):
            self._prompts[prompt[1].decode()] = {}
        return bool(prompt or _BODY.match(line))

    def _note_cuts(self, seen: Recording, cut_line: int) -> None:
        """A killed run stays usable, but nobody shall take its part for the whole."""
        if seen.current is not None:
            seen.current.cut = True
        cut = [_name(key) for key, workload in seen.workloads.items() if workload.cut]
        where = [f"{self.path}: ends inside {', '.join(cut)}"] if cut else []
        where += [f"{self.path}:{cut_line}: the last line is cut off"] if cut_line else []
        self.notes = [f"{said}; judged as far as it goes" for said in where]


def _usual(facts: Sequence[Facts]) -> Facts | None:
    """The one that is there most often; the first of several."""
    counts = Counter(one.model_dump_json() for one in facts)
    return Facts.model_validate_json(counts.most_common(1)[0][0]) if counts else None


def _text(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        if number > 1 and not line.endswith(b"\n"):
            return ""  # cut off inside a character
        raise HistoryError(f"{path}: cannot be read as a history: line {number}: {error}") from None


def _name(key: Key) -> str:
    return f"{key[0]}[{key[1]}]" if key[1] else key[0]


def by_target(archives: Iterable[Archive]) -> dict[str, list[Archive]]:
    """Files by the label of their target; those of several workers of one run stand together.

    Two files of one target that both hold a case are two runs: the second is labelled NAME-2.
    """
    found: dict[str, list[Archive]] = {}
    for archive in archives:
        label, number = _label(archive), 1
        while not _joins(archive, found.get(_numbered(label, number), [])):
            number += 1
        found.setdefault(_numbered(label, number), []).append(archive)
    return found


def _joins(archive: Archive, others: Sequence[Archive]) -> bool:
    same = all(_identity(other) == _identity(archive) for other in others)
    return same and not any(other.places.keys() & archive.places.keys() for other in others)


def _identity(archive: Archive) -> tuple[str, ...]:
    facts = archive.facts
    return (facts.name, facts.version, facts.model, facts.how) if facts else (str(archive.path),)


def _label(archive: Archive) -> str:
    facts = archive.facts
    words = f"{facts.name} {facts.version}" if facts else archive.path.stem
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-") or "target"


def _numbered(label: str, number: int) -> str:
    return label if number == 1 else f"{label}-{number}"

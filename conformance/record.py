"""The history file: writing it while a run goes on, and reading it back.

Knows the JSON Lines form of every event and how events build up workloads. Does not know how the facts
came about (`drive.py`) or what they mean (`judges/`). The live view of a run is made by the same
`Recording.apply` that a reader uses, on the very line that was written, so that a judgement during the
run and a later replay can only agree. A history holds no verdict and no secret.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from conformance.history import VERSION, Facts, Memory, Outcome, Sample, Span, Workload
from conformance.plan import Scale

Key = tuple[str, str]
"""Spec id and rung."""


class HistoryError(Exception):
    """A file that is no usable history; the message names file and line and says what was expected."""


@dataclass
class Recording:
    """What a history says so far: a header, and one workload per (spec id, rung)."""

    header: dict[str, Any] = field(default_factory=dict)
    workloads: dict[Key, Workload] = field(default_factory=dict)
    digests: dict[Key, str] = field(default_factory=dict)
    """Digest of the plan behind each workload: another digest means that the spec has changed since."""
    prompts: MutableMapping[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)
    """By arm, stated before any workload began: what every workload starts from."""
    current: Workload | None = None

    def apply(self, event: dict[str, Any]) -> None:
        """Takes one event in; ValueError when it cannot be one, KeyError when a part is missing."""
        handler = _HANDLERS.get(event["event"])
        if handler is None:
            raise ValueError(f"unknown event {event['event']!r}")
        handler(self, event)

    def skim(self, event: dict[str, Any]) -> None:
        """As `apply`, for an index of a file: of a workload only its beginning, its facts and its end."""
        if event["event"] in _HANDLERS and event["event"] not in _FRAME:
            self.open()
        else:
            self.apply(event)

    def open(self) -> Workload:
        if self.current is None:
            raise ValueError("an event of a workload stands outside of any workload")
        return self.current

    def outcome(self, data: dict[str, Any]) -> Outcome:
        """An outcome whose prompt is put back in place of its digest."""
        plan = dict(data["plan"])
        plan.update(self.prompts[plan.pop("prompt")])
        return Outcome.model_validate({**data, "plan": plan})


def _header(seen: Recording, event: dict[str, Any]) -> None:
    version, scale = event["version"], event.get("scale", "full")
    if type(version) is not int or version < 1:
        raise ValueError(f"format {version!r}; expected a whole number from 1 to {VERSION}")
    if scale not in get_args(Scale):
        raise ValueError(f"scale {scale!r}; expected {' or '.join(get_args(Scale))}")
    if version > VERSION:
        raise ValueError(f"format {version}; this version reads up to {VERSION}, a newer one is needed")
    seen.header = {name: value for name, value in event.items() if name != "event"}
    _cut(seen)


def _cut(seen: Recording) -> None:
    """Leaves a workload that has no end; here too, since joined files follow on killed ones."""
    if seen.current is not None:
        seen.current.cut = True
        seen.current = None


def _facts(seen: Recording, event: dict[str, Any]) -> None:
    facts = Facts.model_validate(event["facts"])
    place = seen.facts if seen.current is None else seen.current.facts
    place[event["arm"]] = facts


def _prompt(seen: Recording, event: dict[str, Any]) -> None:
    seen.prompts[event["digest"]] = {"prompt_ids": event["ids"], "prompt_text": event["text"]}


def _begin(seen: Recording, event: dict[str, Any]) -> None:
    key = (event["spec"], event["rung"])
    if key in seen.workloads:
        # Which of the two would be judged? A file joined with itself or with a later run has both.
        name = f"{key[0]}[{key[1]}]" if key[1] else key[0]
        raise ValueError(
            f"{name} occurs a second time; expected each case once, so replay the files one by one"
        )
    seen.current = Workload(*key, facts=dict(seen.facts), baseline=seen.header.get("baseline"))
    seen.workloads[key] = seen.current
    seen.digests[key] = event["digest"]


def _outcome(seen: Recording, event: dict[str, Any]) -> None:
    seen.open().outcomes.append(seen.outcome(event["outcome"]))


def _sample(seen: Recording, event: dict[str, Any]) -> None:
    seen.open().samples.append(Sample.model_validate(event["sample"]))


def _memory(seen: Recording, event: dict[str, Any]) -> None:
    seen.open().memory.append(Memory.model_validate(event["memory"]))


def _span(seen: Recording, event: dict[str, Any]) -> None:
    seen.open().spans.append(Span.model_validate(event["span"]))


def _solo(seen: Recording, event: dict[str, Any]) -> None:
    seen.open().solos.setdefault(event["key"], []).append(seen.outcome(event["outcome"]))


def _trouble(seen: Recording, event: dict[str, Any]) -> None:
    seen.open().trouble = event["text"]


def _unobservable(seen: Recording, event: dict[str, Any]) -> None:
    seen.open().unobservable = event["text"]


def _end(seen: Recording, event: dict[str, Any]) -> None:
    seen.open()
    seen.current = None


_HANDLERS: dict[str, Callable[[Recording, dict[str, Any]], None]] = {
    "header": _header,
    "facts": _facts,
    "prompt": _prompt,
    "begin": _begin,
    "outcome": _outcome,
    "sample": _sample,
    "memory": _memory,
    "span": _span,
    "solo": _solo,
    "trouble": _trouble,
    "unobservable": _unobservable,
    "end": _end,
}

_FRAME = ("header", "facts", "prompt", "begin", "end")


def default_path(root: Path, worker: str | None = None) -> Path:
    """`root/.conformance/history-<UTC time>[-worker].jsonl`."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S-%f")[:-3]
    suffix = f"-{worker}" if worker else ""
    return root / ".conformance" / f"history-{stamp}{suffix}.jsonl"


class Recorder:
    """Writes a history, one flushed line an event, and keeps the view that a reader of it would get.

    May be used from several threads. Times are `now()`: seconds since the recorder was made.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.recording = Recording()
        self._clock, self._start = clock, clock()
        self._lock = threading.RLock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")

    def now(self) -> float:
        return self._clock() - self._start

    @property
    def workload(self) -> Workload:
        """The workload that is open; ValueError when none is."""
        return self.recording.open()

    def header(self, **fields: Any) -> None:
        """The first line of the file: what is known before any contact. Never pass a key or a password."""
        utc = datetime.now(UTC).isoformat(timespec="seconds")
        self._write({"event": "header", "version": VERSION, "utc": utc, **fields})

    def facts(self, arm: str, facts: Facts) -> None:
        """Inside a workload for that one alone; before the first one for all that follow."""
        self._write({"event": "facts", "arm": arm, "facts": facts.model_dump(mode="json")})

    def begin(self, spec_id: str, rung: str | None, digest: str) -> None:
        self._write({"event": "begin", "spec": spec_id, "rung": rung or "", "digest": digest})

    def outcome(self, outcome: Outcome) -> None:
        with self._lock:
            self._write({"event": "outcome", "outcome": self._slim(outcome)})

    def solo(self, key: str, outcome: Outcome) -> None:
        with self._lock:
            self._write({"event": "solo", "key": key, "outcome": self._slim(outcome)})

    def sample(self, sample: Sample) -> None:
        self._write({"event": "sample", "sample": sample.model_dump()})

    def memory(self, memory: Memory) -> None:
        self._write({"event": "memory", "memory": memory.model_dump(exclude_none=True)})

    def span(self, span: Span) -> None:
        self._write({"event": "span", "span": span.model_dump()})

    def trouble(self, text: str) -> None:
        self._write({"event": "trouble", "text": text})

    def unobservable(self, text: str) -> None:
        self._write({"event": "unobservable", "text": text})

    def end(self) -> None:
        self._write({"event": "end", "at": self.now()})

    def close(self) -> None:
        self._file.close()

    def _slim(self, outcome: Outcome) -> dict[str, Any]:
        data = outcome.model_dump(exclude_none=True)
        plan = data["plan"]
        ids, text = plan.pop("prompt_ids", None), plan.pop("prompt_text", None)
        plan["prompt"] = self._prompt(ids, text)
        return data

    def _prompt(self, ids: list[int] | None, text: str | None) -> str:
        digest = hashlib.sha256(json.dumps([ids, text]).encode()).hexdigest()[:16]
        if digest not in self.recording.prompts:
            self._write({"event": "prompt", "digest": digest, "ids": ids, "text": text})
        return digest

    def _write(self, event: dict[str, Any]) -> None:
        line = json.dumps(event, separators=(",", ":"))
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()
            self.recording.apply(json.loads(line))


def read(path: Path) -> Recording:
    """Reads a history line by line; raises HistoryError for what is none.

    A last line that was cut off is left out, and the workload that had no end is marked `cut`: a killed
    run stays usable. Histories of several workers may be joined into one file.
    """
    seen = Recording()
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                take(seen.apply, path, number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise HistoryError(f"{path}: cannot be read as a history: {error}") from None
    if not seen.header:
        raise HistoryError(f"{path}: empty, expected a history")
    _cut(seen)
    return seen


def take(apply: Callable[[dict[str, Any]], None], path: Path, number: int, line: str) -> None:
    """Give one line of a file to `apply`. Raises HistoryError that names it, unless it was cut off."""
    try:
        event = json.loads(line)
        if not isinstance(event, dict):
            raise ValueError("expected a JSON object")
        if number == 1 and event["event"] != "header":
            raise ValueError("the first line of a history is its header")
        apply(event)
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        # Every whole line ends in a line feed, so only the very last one can be without.
        if line.endswith("\n") or number == 1:
            raise HistoryError(f"{path}:{number}: not an event of a history: {_why(error)}") from None


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)

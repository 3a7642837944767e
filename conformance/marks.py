"""YAML with line marks: where every key and value of a document stands, and errors that point there.

Knows YAML 1.2 and positions. Does not know what a spec may say (`spec.py`, `load.py`). Lines and columns
count from 1, as editors do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    Event,
    NodeEvent,
    ScalarEvent,
)
from ruamel.yaml.nodes import Node
from ruamel.yaml.parser import RoundTripParser
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scalarbool import ScalarBoolean

Location = tuple[int | str, ...]

DEEPEST = 20
"""Levels of nesting; a spec needs about six."""
MOST_NODES = 10_000
"""Keys and values of a file, each alias counted as all that it stands for; a spec has a few hundred."""
_SHOWN = 100
"""Characters of a line that an error shows."""
_SAID = 300
_HUGE = re.compile(r"[-+]?[0-9_]{100,}")


@dataclass(frozen=True)
class Problem:
    """One mistake in a file: where it stands, what is wrong, and what would be legal there."""

    line: int
    column: int
    message: str
    legal: str = ""

    def render(self, path: str, lines: Sequence[str]) -> str:
        """`file:line:column: message`, the line, a caret under the place, and what would be legal."""
        whole = lines[self.line - 1] if self.line <= len(lines) else ""
        text, before = _window("".join(map(_visible, whole)), self.column - 1)
        pad = "".join("\t" if c == "\t" else " " for c in text[:before])
        message = self.message if len(self.message) <= _SAID else f"{self.message[:_SAID]}…"
        shown = [f"{path}:{self.line}:{self.column}: {message}", f"    {text}", f"    {pad}^"]
        return "\n".join([*shown, f"legal here: {self.legal}"] if self.legal else shown)


class SpecError(ValueError):
    """A file that is no spec, with every problem found in it, in the order of the file."""

    def __init__(self, path: Path, problems: Sequence[Problem], lines: Sequence[str] = ()) -> None:
        self.path = path
        self.problems = tuple(sorted(problems, key=lambda p: (p.line, p.column)))
        super().__init__("\n\n".join(p.render(display(path), lines) for p in self.problems))


class Document:
    """One parsed file: `data` in plain Python values, `mark` and `problem` for positions in it."""

    start: ClassVar[str] = "a spec is a mapping that starts with `spec: 1`"
    """What a file that holds something else is told."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines = text.splitlines()
        self._root = _parse(path, text, self.lines, self.start)
        self._nodes = 0
        self.data = self._plain(self._root, ())

    def mark(self, loc: Sequence[int | str]) -> tuple[int, int]:
        """Line and column of the value at `loc`; of the nearest thing around it where there is none."""
        node: Any = self._root
        place: Sequence[int] = _place(node)
        for step in loc:
            if isinstance(node, CommentedMap) and step in node:
                place = _own(node, step)[2:] or _place(node)
            elif isinstance(node, CommentedSeq) and isinstance(step, int) and step < len(node):
                place = node.lc.item(step)
            else:
                break
            node = node[step]
        return place[0] + 1, place[1] + 1

    def mark_key(self, loc: Sequence[int | str]) -> tuple[int, int]:
        """Line and column of the key that ends `loc`."""
        parent: Any = self._root
        for step in loc[:-1]:
            parent = parent[step]
        line, column = _own(parent, loc[-1])[:2] or _place(parent)
        return line + 1, column + 1

    def problem(self, loc: Sequence[int | str], message: str, legal: str = "", key: bool = False) -> Problem:
        line, column = self.mark_key(loc) if key else self.mark(loc)
        return Problem(line, column, message, legal)

    def error(self, problems: Sequence[Problem]) -> SpecError:
        return SpecError(self.path, problems, self.lines)

    def _plain(self, node: object, loc: Location) -> Any:
        self._count(loc)
        if isinstance(node, CommentedMap):
            return {self._key(key, loc): self._plain(value, (*loc, key)) for key, value in node.items()}
        if isinstance(node, CommentedSeq):
            return [self._plain(value, (*loc, i)) for i, value in enumerate(node)]
        return self._scalar(node, loc)

    def _count(self, loc: Location) -> None:
        """Aliases multiply what stands in the file."""
        self._nodes += 1
        if self._nodes > MOST_NODES or len(loc) > DEEPEST:
            raise self.error([self.problem(loc[:DEEPEST], _too_much(len(loc)), "a spec is small and flat")])

    def _key(self, key: object, loc: Location) -> str:
        if type(key) is str:
            return key
        raise self.error([self.problem(loc, f"the key {key!r} is not a text", "quote it")])

    def _scalar(self, node: object, loc: Location) -> object:
        if isinstance(node, bool | ScalarBoolean):
            return bool(node)
        for kind in (int, float, str):
            if isinstance(node, kind):
                return kind(node)
        if node is None:
            return None
        problem = self.problem(
            loc, "a date or a tagged value means nothing here", "quote it to make it a text"
        )
        raise self.error([problem])


def read_document(path: Path, kind: type[Document] = Document) -> Document:
    """Parse one file, with or without a byte order mark.

    Raises SpecError for an unreadable file, broken YAML, a second document, or one that is far too large.
    """
    try:
        data = path.read_bytes()
        return kind(path, data.decode("utf-8-sig"))
    except OSError as error:
        raise SpecError(path, [Problem(1, 1, f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error.object, error.start) from None


def _not_utf8(path: Path, data: bytes, start: int) -> SpecError:
    line, column = _position(data[:start].decode("utf-8"))
    problem = Problem(line, column, f"is not UTF-8 text: byte 0x{data[start]:02x}", "save the file as UTF-8")
    return SpecError(path, [problem], data.decode("utf-8", errors="replace").splitlines())


def _position(before: str) -> tuple[int, int]:
    """Line and column of the character after this text."""
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _visible(letter: str) -> str:
    """Control characters of a broken file must not reach the terminal."""
    return letter if letter.isprintable() or letter == "\t" else "\N{REPLACEMENT CHARACTER}"


def _window(text: str, at: int) -> tuple[str, int]:
    """At most `_SHOWN` characters of a line around a place, and where in them it is."""
    if len(text) <= _SHOWN:
        return text, min(at, len(text))
    start = max(0, min(at - _SHOWN // 2, len(text) - _SHOWN))
    left, right = "…" * (start > 0), "…" * (start + _SHOWN < len(text))
    return f"{left}{text[start : start + _SHOWN]}{right}", at - start + len(left)


def _too_much(depth: int) -> str:
    if depth > DEEPEST:
        return f"nested more than {DEEPEST} levels deep"
    return f"more than {MOST_NODES:,} values, with each alias counted as what it stands for"


def display(path: Path) -> str:
    """The path as a user would type it from where pytest was called."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def _parse(path: Path, text: str, lines: Sequence[str], start: str) -> Any:
    try:
        root = _yaml().load(text)
    except ReaderError as error:
        raise SpecError(path, [_bad_character(text, error)], lines) from None
    except MarkedYAMLError as error:
        raise SpecError(path, [_yaml_problem(error)], lines) from None
    except (YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise SpecError(path, [Problem(1, 1, f"is no YAML: {reason}")], lines) from None
    if not isinstance(root, CommentedMap):
        raise SpecError(path, [Problem(1, 1, start)], lines)
    return root


class _Located(RoundTripConstructor):
    """Says where a value stands that looks like one of YAML's and is none, such as 2027-13-01."""

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            wrong = f"{node.value!r} is no value: {error}"
            raise MarkedYAMLError(problem=wrong, problem_mark=node.start_mark) from None


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.Parser, yaml.Constructor = _Wary, _Located
    return yaml


class _Monster(MarkedYAMLError):
    """A file that is far too large, or built to become so."""


class _Wary(RoundTripParser):
    """Counts before anything is built: events come one by one, and the building recurses."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._nodes, self._opened = 0, list[str | None]()

    def get_event(self) -> Any:
        event = super().get_event()
        self._nodes += isinstance(event, NodeEvent)
        if isinstance(event, CollectionStartEvent):
            self._opened.append(event.anchor)
        elif isinstance(event, CollectionEndEvent):
            self._opened.pop()
        if wrong := _monstrous(event, self._opened, self._nodes):
            raise _Monster(problem=wrong, problem_mark=event.start_mark)
        return event


def _monstrous(event: Event, opened: Sequence[str | None], nodes: int) -> str:
    """What is too much about an event below these anchors, as node number `nodes`; empty if nothing is."""
    if len(opened) > DEEPEST or nodes > MOST_NODES:
        return _too_much(len(opened))
    if isinstance(event, AliasEvent) and event.anchor in opened:
        return f"the alias {event.anchor!r} stands inside its own anchor"
    if isinstance(event, ScalarEvent) and not event.style and _HUGE.fullmatch(event.value):
        return f"a number of {len(event.value)} digits"
    return ""


def _bad_character(text: str, error: ReaderError) -> Problem:
    line, column = _position(text[: error.position])
    code = ord(text[error.position]) if error.position < len(text) else 0
    return Problem(line, column, f"the character U+{code:04X} may not stand in YAML", "leave it out")


def _yaml_problem(error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    message = error.problem or error.context or "is no YAML"
    if "another document" in message:
        message = "a second document; write one spec a file"
    legal = "a spec is small and flat" if isinstance(error, _Monster) else ""
    return Problem(mark.line + 1 if mark else 1, mark.column + 1 if mark else 1, message, legal)


def _own(node: CommentedMap, key: int | str) -> Sequence[int]:
    """Line and column of a key, then of its value; nothing for a key that a YAML merge brought in."""
    marks: Sequence[int] = (node.lc.data or {}).get(key, ())
    return marks


def _place(node: CommentedMap) -> tuple[int, int]:
    return node.lc.line, node.lc.col

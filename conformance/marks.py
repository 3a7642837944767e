"""YAML with line marks: where every key and value of a document stands, and errors that point there.

Knows YAML 1.2 and positions. Does not know what a spec may say (`spec.py`, `load.py`). Lines and columns
count from 1, as editors do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean

Location = tuple[int | str, ...]


@dataclass(frozen=True)
class Problem:
    """One mistake in a file: where it stands, what is wrong, and what would be legal there."""

    line: int
    column: int
    message: str
    legal: str = ""

    def render(self, path: str, lines: Sequence[str]) -> str:
        """`file:line:column: message`, the line, a caret under the place, and what would be legal."""
        text = lines[self.line - 1] if self.line <= len(lines) else ""
        pad = "".join("\t" if c == "\t" else " " for c in text[: self.column - 1])
        shown = [f"{path}:{self.line}:{self.column}: {self.message}", f"    {text}", f"    {pad}^"]
        return "\n".join([*shown, f"legal here: {self.legal}"] if self.legal else shown)


class SpecError(ValueError):
    """A file that is no spec, with every problem found in it, in the order of the file."""

    def __init__(self, path: Path, problems: Sequence[Problem], lines: Sequence[str] = ()) -> None:
        self.path = path
        self.problems = tuple(sorted(problems, key=lambda p: (p.line, p.column)))
        super().__init__("\n\n".join(p.render(display(path), lines) for p in self.problems))


class Document:
    """One parsed file: `data` in plain Python values, `mark` and `problem` for positions in it."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines = text.splitlines()
        self._root = _parse(path, text, self.lines)
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
        if isinstance(node, CommentedMap):
            return {self._key(key, loc): self._plain(value, (*loc, key)) for key, value in node.items()}
        if isinstance(node, CommentedSeq):
            return [self._plain(value, (*loc, i)) for i, value in enumerate(node)]
        return self._scalar(node, loc)

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


def read_document(path: Path) -> Document:
    """Parse one file. Raises SpecError for an unreadable file, broken YAML or a second document."""
    try:
        return Document(path, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(path, [Problem(1, 1, f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        raise SpecError(path, [Problem(1, 1, f"is not UTF-8 text (byte {error.start})")]) from None


def display(path: Path) -> str:
    """The path as a user would type it from where pytest was called."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def _parse(path: Path, text: str, lines: Sequence[str]) -> Any:
    try:
        root = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        raise SpecError(path, [_yaml_problem(error)], lines) from None
    except (YAMLError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise SpecError(path, [Problem(1, 1, f"is no YAML: {reason}")], lines) from None
    if not isinstance(root, CommentedMap):
        raise SpecError(path, [Problem(1, 1, "a spec is a mapping that starts with `spec: 1`")], lines)
    return root


def _yaml_problem(error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    message = error.problem or error.context or "is no YAML"
    if "another document" in message:
        message = "a second document; write one spec a file"
    return Problem(mark.line + 1 if mark else 1, mark.column + 1 if mark else 1, message)


def _own(node: CommentedMap, key: int | str) -> Sequence[int]:
    """Line and column of a key, then of its value; nothing for a key that a YAML merge brought in."""
    marks: Sequence[int] = (node.lc.data or {}).get(key, ())
    return marks


def _place(node: CommentedMap) -> tuple[int, int]:
    return node.lc.line, node.lc.col

"""The numbered law as data: what each requirement says, how binding it is, and what guards it.

Knows requirements.yaml beside this file. Does not know judges, specs or targets. `python -m
conformance.requirements` prints the tables that docs/requirements.md publishes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from importlib.resources import files
from itertools import groupby

from ruamel.yaml import YAML

AREAS = {
    "adopt": "who gets to reuse",
    "store": "what is kept, and how often",
    "out": "outputs do not know about the cache",
    "key": "what must not match",
    "life": "every way a request can end",
    "count": "what is reported",
    "evict": "under a budget",
    "reset": "starting over",
    "foot": "process memory",
    "tmpl": "chat templates",
}


class Level(StrEnum):
    """MUST judges targets that claim the behaviour, SHOULD marks quality, reference is the bundled engine."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    REFERENCE = "reference"


@dataclass(frozen=True)
class Requirement:
    """One requirement. `only` says where it applies at all; empty means everywhere."""

    id: str
    level: Level
    sentence: str
    guard: str
    only: str = ""

    @property
    def area(self) -> str:
        return self.id.partition("/")[0]

    @property
    def binding(self) -> str:
        return f"{self.level} ({self.only})" if self.only else str(self.level)


def _load() -> dict[str, Requirement]:
    text = files("conformance").joinpath("requirements.yaml").read_text(encoding="utf-8")
    return {
        id_: Requirement(id_, Level(e.pop("level")), **e) for id_, e in YAML(typ="safe").load(text).items()
    }


REQUIREMENTS: dict[str, Requirement] = _load()
"""By id, in the order of the published law."""


def get(id_: str) -> Requirement:
    """The requirement of that id. Raises KeyError that says which ids come close."""
    if id_ in REQUIREMENTS:
        return REQUIREMENTS[id_]
    near = get_close_matches(id_, REQUIREMENTS, n=3) or list(AREAS)
    raise KeyError(f"there is no requirement {id_!r}; did you mean {', '.join(near)}?")


def matching(prefix: str) -> list[Requirement]:
    """The requirements that a prefix selects: `adopt` the area, `adopt/2` one. Empty when there is none."""
    return [r for r in REQUIREMENTS.values() if prefix in (r.id, r.area)]


def tables(requirements: Iterable[Requirement] = REQUIREMENTS.values()) -> str:
    """The law as Markdown, a heading and a table for each area."""
    parts = []
    for area, rows in groupby(requirements, key=lambda r: r.area):
        head = [f"## {area}: {AREAS[area]}", "", "| id | level | requirement | guard |", "|---|---|---|---|"]
        parts.append("\n".join([*head, *map(_row, rows)]))
    return "\n\n".join(parts) + "\n"


def _row(requirement: Requirement) -> str:
    r = requirement
    return f"| {r.id} | {r.binding} | {r.sentence} | {r.guard} |"


if __name__ == "__main__":
    print(tables(), end="")

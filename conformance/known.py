"""Known deviations of a named server release: `expectations/<target>.yaml`, strict expected failures.

Knows what an entry may say, when it applies and when it is over. Does not know which specs there are
(`named.py`), pytest, nor how a verdict was reached. A deviation that is known is still shown; one that went
away is news; one that expired is no excuse.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from conformance import requirements, wording
from conformance.dialect import dialects
from conformance.history import Facts
from conformance.load import did_you_mean
from conformance.marks import Document, Location, Problem, display, read_document
from conformance.spec import Expect, Name, Requirement, Spec, SpecId, Strict
from conformance.verdict import Status

FOLDER = Path(__file__).parent.parent / "expectations"
"""The shipped ones; a clone has them beside the package."""

_SAYS = re.compile(r"^expectations:", re.MULTILINE)
_NUMBER = re.compile(r"\d+(\.\d+)*")


class Entry(Strict):
    """One deviation, as narrow as it is: a spec, a requirement, or both, and what narrows them down."""

    spec: SpecId | None = None
    requirement: Requirement | None = None
    expectation: Name | None = Field(None, description="the item's name, where a spec has several")
    rung: str | None = Field(None, description="of a ladder, as in the item's name: n=1G")
    verdict: Literal["fail", "error", "timeout", "vacuous", "inconclusive"] = "fail"
    reason: Annotated[str, Field(min_length=1)]
    link: Annotated[str, Field(pattern=r"^https?://\S+$")]
    until: date = Field(description="the last day on which it is expected; then it has to be looked at again")
    versions: str = Field("", description='of the server: ">=0.32,<0.34"; empty is every one')

    @field_validator("until", mode="before")
    @classmethod
    def _day(cls, value: object) -> object:
        """YAML knows dates; one in quotes is a date too."""
        try:
            return date.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            raise ValueError("a day is needed, as in 2027-03-01") from None

    @field_validator("versions")
    @classmethod
    def _range(cls, value: str) -> str:
        try:
            SpecifierSet(value)
        except InvalidSpecifier:
            raise ValueError("a range of versions is needed, as in >=0.32,<0.34") from None
        return value

    @field_validator("requirement")
    @classmethod
    def _in_the_law(cls, value: str | None) -> str | None:
        try:
            return requirements.get(value).id if value else value
        except KeyError as unknown:
            raise ValueError(unknown.args[0]) from None

    @model_validator(mode="after")
    def _about_something(self) -> Entry:
        if self.spec is None and self.requirement is None:
            raise ValueError("an entry names a spec, a requirement, or both")
        return self


class _File(Strict):
    expectations: Literal[1]
    target: str = Field(description="the dialect of the server")
    known: list[Entry]

    @field_validator("target")
    @classmethod
    def _a_family(cls, value: str) -> str:
        names = [dialect.dialect for dialect in dialects()]
        if value not in names:
            near = did_you_mean(value, names) or "; `python -m conformance dialects` lists them"
            raise ValueError(f"no dialect is called {value!r}{near}")
        return value


class _Dated(Document):
    """A document in which a day stands as YAML writes it."""

    start = "a file of known deviations is a mapping that starts with `expectations: 1`"

    def _scalar(self, node: object, loc: Location) -> object:
        if isinstance(node, date):
            return node.isoformat() if isinstance(node, datetime) else node
        return super()._scalar(node, loc)


@dataclass(frozen=True)
class Known:
    """An entry and where it stands."""

    entry: Entry
    target: str
    place: str
    """`file:line`."""

    @property
    def says(self) -> str:
        return f"known: {self.entry.reason} ({self.entry.link})"

    def matches(self, facts: Facts, spec: Spec, rung: str, expect: Expect) -> bool:
        """Whether the entry is about this item on this release of this target."""
        entry = self.entry
        wanted = (entry.spec, entry.requirement, entry.expectation, entry.rung)
        found = (spec.id, expect.requirement, expect.id, rung)
        is_item = all(word in (None, said) for word, said in zip(wanted, found, strict=True))
        return is_item and self.target == facts.dialect and in_range(facts.version, entry.versions)

    def expired(self, today: date) -> str:
        """What to tell of an entry that is over; empty while it holds."""
        if today <= self.entry.until:
            return ""
        until = self.entry.until
        return f"{self.place}: expired on {until}, so it is ignored; look again, then renew or delete it"

    @property
    def verdict(self) -> Status:
        return Status(self.entry.verdict)


def in_range(version: str, versions: str) -> bool:
    """Whether a server's version lies in the range; what says no number lies in none but the empty one.

    Letters in front are left out, so that the build b6123 counts as 6123.
    """
    found = _version(version)
    return not versions or (found is not None and SpecifierSet(versions).contains(found, prereleases=True))


def _version(said: str) -> Version | None:
    number = _NUMBER.search(said)
    for word in (said[number.start() :], number[0]) if number else ():
        try:
            return Version(word)
        except InvalidVersion:
            continue
    return None


def find(
    known: Sequence[Known], facts: Facts, spec: Spec, rung: str, expect: Expect, today: date | None = None
) -> tuple[Known | None, str]:
    """The first entry about this item that holds, or what to tell of one that is over."""
    day = today or datetime.now(UTC).date()
    about = [one for one in known if one.matches(facts, spec, rung, expect)]
    holding = next((one for one in about if not one.expired(day)), None)
    return (holding, "") if holding or not about else (None, about[0].expired(day))


def load_all(folder: Path | None = None) -> list[Known]:
    """Every entry of a folder (default: the shipped one). Raises SpecError for the first wrong file."""
    return [one for path in sorted((folder or FOLDER).glob("*.yaml")) for one in load(path)]


def load(path: Path) -> list[Known]:
    """The entries of one file. Raises SpecError with all that is wrong in it, at file:line:column."""
    return read(path)[1]


def read(path: Path) -> tuple[Document, list[Known]]:
    """The same, with the document, so that later errors can still point into the file."""
    document = read_document(path, _Dated)
    try:
        file = _File.model_validate(document.data)
    except ValidationError as error:
        raise document.error([_problem(document, e) for e in error.errors()]) from None
    return document, [Known(entry, file.target, _place(document, i)) for i, entry in enumerate(file.known)]


def is_expectations(path: Path) -> bool:
    """Whether a YAML file holds known deviations and is no spec."""
    try:
        return bool(_SAYS.search(path.read_text(encoding="utf-8-sig", errors="replace")))
    except OSError:
        return False


def _place(document: Document, index: int) -> str:
    return f"{display(document.path)}:{document.mark(('known', index))[0]}"


def _problem(document: Document, error: ErrorDetails) -> Problem:
    loc = error["loc"]
    if error["type"] == "extra_forbidden":
        legal = _keys(Entry if len(loc) > 1 else _File)
        word = str(loc[-1])
        message = f"unknown key {word!r}{did_you_mean(word, legal)}"
        return document.problem(loc, message, ", ".join(legal), key=True)
    if error["type"] == "missing":
        return document.problem(loc[:-1], f"the key {loc[-1]!r} is missing")
    return document.problem(loc, wording.message(error))


def _keys(model: type[BaseModel]) -> Sequence[str]:
    return list(model.model_fields)

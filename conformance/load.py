"""A spec file made a `Spec`: parsed, validated, its expectations normalised, mistakes located.

Knows files, line marks, and which judges exist with which arguments. Does not know a target, its numbers,
or pytest. Every mistake of a file is reported at once, as `file:line:column`, the line, a caret and what
would be legal (design, section 3). Meaning that spans places of a file is looked at in `check.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from conformance import spec as types
from conformance import wording
from conformance.check import check
from conformance.judges import JUDGES, Judge
from conformance.marks import Document, Location, Problem, SpecError, read_document
from conformance.spec import Expect, Spec
from conformance.unformed import unformed

Judges = Mapping[str, Judge]
RESERVED = ("as", "id")
"""Keys of an expectation that are not the judge's: whose law it is, and the name of the pytest item."""

_MODELS: dict[int | str, type[BaseModel]] = {
    **{f"<{word}>": getattr(types, word.capitalize()) for word in types.STEP_WORDS},
    "<unique>": types.UniquePart,
    "<head_of>": types.HeadPart,
    "<literal>": types.LiteralPart,
    "<marker>": types.MarkerPart,
    "<repeat_of>": types.RepeatPart,
    "<reply_of>": types.ReplyPart,
    "<rendered_of>": types.RenderedPart,
    "<changed>": types.ChangedPart,
    "<mapping>": types.StopToken,
    "<ban>": types.BanFirst,
    "messages": types.Message,
    "sampling": types.Sampling,
    "when": types.Reached,
    "leave": types.Leave,
    "serve": types.Serve,
    "texts": types.Text,
    "arms": types.Arm,
}
Faults = Callable[[], Collection[str] | None]
"""Names of the faults there are, or None where nobody knows."""
_ENTRIES = ("<burst>", "<start>")
"""Steps whose `each` is a list of entries, not of prompt parts."""


@dataclass(frozen=True)
class Loaded:
    """A valid spec and the document it came from, so that later errors can still point into the file."""

    spec: Spec
    document: Document

    @property
    def path(self) -> Path:
        return self.document.path


def load(path: Path, judges: Judges = JUDGES, faults: Faults | None = None) -> Loaded:
    """Read and check one file. Raises SpecError with everything that is wrong in it.

    `faults` tells what `kills` may claim, and is asked only where something is claimed; without it, claims
    are believed.
    """
    document = read_document(path)
    expects, problems = _expectations(document, judges)
    spec, errors = _formed(document, expects)
    problems += _problems(document, [e for e in errors if not (problems and e["loc"][:1] == ("expect",))])
    claims = _claims(document, faults)
    if spec is None or problems:
        known = {(problem.line, problem.column) for problem in problems}
        told = [*unformed(document, expects or [], judges), *claims]
        raise document.error([*problems, *(p for p in told if (p.line, p.column) not in known)])
    if problems := [*check(spec, document, judges), *claims]:
        raise document.error(problems)
    return Loaded(spec, document)


def _claims(document: Document, faults: Faults | None) -> list[Problem]:
    """Claims to kill what is no fault; what is no name at all is a mistake of form."""
    claimed = document.data.get("kills")
    if faults is None or not isinstance(claimed, list) or not claimed or (known := faults()) is None:
        return []
    return [
        document.problem(
            ("kills", i), f"there is no fault {name!r}{did_you_mean(name, known)}", ", ".join(known)
        )
        for i, name in enumerate(claimed)
        if isinstance(name, str) and name not in known
    ]


def _formed(
    document: Document, expects: Sequence[Expect | None] | None
) -> tuple[Spec | None, list[ErrorDetails]]:
    """The spec without those of its expectations that are none, or what is wrong with its form."""
    good = None if expects is None else {"expect": [one for one in expects if one is not None]}
    try:
        return Spec.model_validate(document.data | (good or {})), []
    except ValidationError as error:
        return None, error.errors()


def load_all(
    paths: Iterable[Path], judges: Judges = JUDGES, faults: Faults | None = None
) -> Iterator[Loaded | SpecError]:
    """Each file as a spec, or as the error it is; a second file with an id seen before is an error too."""
    seen: dict[str, Path] = {}
    for path in paths:
        try:
            loaded = load(path, judges, faults)
            claim_id(loaded, seen)
            yield loaded
        except SpecError as error:
            yield error


def claim_id(loaded: Loaded, seen: dict[str, Path]) -> None:
    """Note the spec's id in `seen`. Raises SpecError when another file has it."""
    first = seen.setdefault(loaded.spec.id, loaded.path)
    if first != loaded.path:
        message = f"the id {loaded.spec.id!r} is already that of {first}"
        raise loaded.document.error([loaded.document.problem(("id",), message, "an id of its own")])


def spec_files(root: Path) -> list[Path]:
    """Every YAML file under `root`, in the order of their paths; a folder may be called x.yaml."""
    return sorted(p for p in root.rglob("*") if p.suffix in (".yaml", ".yml") and not p.is_dir())


def did_you_mean(word: str, legal: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(legal), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _expectations(document: Document, judges: Judges) -> tuple[list[Expect | None] | None, list[Problem]]:
    """The `expect` list, None in it for what is no expectation; None where there is no list to look at."""
    raw = document.data.get("expect")
    if not isinstance(raw, list):
        return None, []
    problems: list[Problem] = []
    return [_expectation(document, i, entry, judges, problems) for i, entry in enumerate(raw)], problems


def _expectation(
    document: Document, i: int, entry: Any, judges: Judges, problems: list[Problem]
) -> Expect | None:
    if not isinstance(entry, dict) or len(entry) != 1:
        message = "an expectation is one judge's word with its arguments: `- adopters: {of: eight}`"
        problems.append(document.problem(("expect", i), message, ", ".join(sorted(judges))))
        return None
    [(word, body)] = entry.items()
    loc: Location = ("expect", i, word)
    if word not in judges:
        message = f"unknown judge {word!r}{did_you_mean(word, judges)}"
        problems.append(document.problem(loc, message, ", ".join(sorted(judges)), key=True))
        return None
    if not isinstance(body, dict | None):
        problems.append(document.problem(loc, f"the arguments of {word} are a mapping, not {body!r}"))
        return None
    return _judged(document, loc, judges[word], body or {}, problems)


def _judged(
    document: Document, loc: Location, judge: Judge, body: dict[str, Any], problems: list[Problem]
) -> Expect | None:
    args = {key: value for key, value in body.items() if key not in RESERVED}
    try:
        judge.args.model_validate(args)
        return Expect.model_validate(
            {
                "judge": judge.name,
                "args": args,
                "requirement": body.get("as", judge.requirement),
                "id": body.get("id", judge.name),
                "line": document.mark_key(loc)[0],
            }
        )
    except ValidationError as error:
        problems += _problems(document, error.errors(), loc, judge.args)
        return None


def _problems(
    document: Document,
    errors: Sequence[ErrorDetails],
    prefix: Location = (),
    model: type[BaseModel] | None = None,
) -> list[Problem]:
    """Pydantic's errors as problems at places; those of one place (branches of a union) become one."""
    placed = sorted((_problem(document, e, prefix, model) for e in errors), key=_branch)
    return [_either(list(group)) for _, group in groupby(placed, key=_branch)]


def _branch(problem: Problem) -> tuple[int, int, str]:
    """Equal for the branches of one union: they stand at one place and say what it should be."""
    return problem.line, problem.column, "" if problem.message.startswith("should be") else problem.message


def _either(branches: Sequence[Problem]) -> Problem:
    first = branches[0]
    _, _, found = first.message.partition(", not ")
    ways = dict.fromkeys(b.message.partition(", not ")[0].removeprefix("should be ") for b in branches)
    return replace(first, message=f"should be {' or '.join(ways)}, not {found}") if len(ways) > 1 else first


def _problem(
    document: Document, error: ErrorDetails, prefix: Location, model: type[BaseModel] | None
) -> Problem:
    loc = prefix + _in_file(error)
    if error["type"] == "extra_forbidden":
        legal = _keys(error["loc"], model)
        message = f"unknown key {loc[-1]!r}{did_you_mean(str(loc[-1]), legal)}"
        return document.problem(loc, message, ", ".join(legal), key=True)
    if error["type"] == "missing":
        return document.problem(loc[:-1], f"the key {loc[-1]!r} is missing")
    if loc[-1:] == ("[key]",):
        return document.problem(loc[:-1], wording.message(error), key=True)
    return document.problem(loc, wording.message(error))


def _in_file(error: ErrorDetails) -> Location:
    """Where the error stands in the file: without the tags of unions, under the names a file uses.

    Arguments that do not fit each other stand nowhere of their own: the place is that of all of them.
    """
    if not error["loc"]:
        return ()
    *around, last = (_word(step) for step in error["loc"])
    is_tag = str(last).startswith("<") and error["type"] not in ("extra_forbidden", "missing")
    inner = [] if is_tag else [last]
    return tuple(step for step in around if not str(step).startswith("<")) + tuple(inner)


def _word(step: int | str) -> int | str:
    """`requirement` of an expectation is written `as`."""
    return "as" if step == "requirement" else step


def _keys(loc: tuple[int | str, ...], model: type[BaseModel] | None) -> list[str]:
    """Legal keys of the mapping in which the last word of `loc` stands."""
    found = model or _model(loc[:-1])
    legal = [field.alias or name for name, field in found.model_fields.items()]
    return [*legal, *RESERVED] if model else legal


def _model(loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The type of the mapping at a place: that of the last word that names one."""
    for i, word in reversed(list(enumerate(loc))):
        if word == "each" and i and loc[i - 1] in _ENTRIES:
            return types.Entry
        if word in _MODELS:
            return _MODELS[word]
    return Spec

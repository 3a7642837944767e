"""`python -m conformance explain WHAT`: a requirement, a judge or a spec, by its id or its file.

Knows the command line and how each of them is told. Does not know a running server.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.commands._specs import add_specs, complain, folders, load
from conformance.dialect import Dialect, dialects
from conformance.evidence import outlook
from conformance.judges import JUDGES
from conformance.load import Loaded
from conformance.load import load as load_spec
from conformance.marks import SpecError, display
from conformance.requirements import AREAS, REQUIREMENTS, Requirement, get, matching
from conformance.rungs import rungs
from conformance.spec import Arm, step_name

if TYPE_CHECKING:
    from conformance.commands import Commands

_TEXT = "a requirement, a judge or a spec"
_YAML = (".yaml", ".yml")
_MORE = "`python -m conformance list` tells the specs; --specs DIR adds yours"


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("explain", help=_TEXT, description=_TEXT)
    parser.add_argument("id", help="adopt, adopt/1, same_as_solo, adopt/warm-burst, mine/my-case.yaml")
    add_specs(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if Path(args.id).suffix in _YAML and Path(args.id).is_file():
        return _explain_file(Path(args.id))
    specs, _ = load(folders(args))
    blocks = [
        *(_of_requirement(requirement, specs) for requirement in matching(args.id)),
        *(_of_judge(name) for name in JUDGES if name == args.id),
        *(_of_spec(loaded) for loaded in specs if loaded.spec.id == args.id),
    ]
    if not blocks:
        print(_unknown(args.id, specs), file=sys.stderr)
        return 2
    print("\n\n".join(blocks))
    return 0


def _explain_file(path: Path) -> int:
    try:
        print(_of_spec(load_spec(path)))
    except SpecError as error:
        return complain([error])
    return 0


def _unknown(word: str, specs: Sequence[Loaded]) -> str:
    """What comes near: files where a file was meant, else ids."""
    if Path(word).suffix in _YAML:
        said, legal = f"there is no file {word}", [display(loaded.path) for loaded in specs]
    else:
        ids = [loaded.spec.id for loaded in specs]
        said, legal = f"nothing is called {word!r}", [*AREAS, *REQUIREMENTS, *JUDGES, *ids]
    near = ", ".join(get_close_matches(word, legal, n=3))
    return f"{said}; " + (f"did you mean {near}?" if near else f"there is: {', '.join(AREAS)}. {_MORE}")


def _of_requirement(requirement: Requirement, specs: Sequence[Loaded]) -> str:
    provers = [loaded.spec.id for loaded in specs if requirement.id in loaded.spec.proves]
    return "\n".join(
        [
            f"{requirement.id} {requirement.binding}: {requirement.sentence}",
            f"  guard      {requirement.guard}",
            f"  proved by  {', '.join(provers) or 'no shipped spec yet'}",
            *_of_servers(requirement),
        ]
    )


def _of_servers(requirement: Requirement) -> list[str]:
    """What each known family is expected to do; those that differ first, the rest in one line."""
    found = [(dialect, outlook(requirement, dialect)) for dialect in dialects()]
    lines = [_server(dialect, said) for dialect, said in found if said != "claimed"]
    plain = [dialect.dialect for dialect, said in found if said == "claimed"]
    return [*lines, *([f"  claimed    {', '.join(plain)}"] if plain else [])]


def _server(dialect: Dialect, said: str) -> str:
    return f"  server     {dialect.dialect}: {said}"


def _of_judge(name: str) -> str:
    judge = JUDGES[name]
    lines = [
        f"{name}: {' '.join(judge.doc.split())}",
        f"  judges     {judge.requirement}, unless `as:` names another",
    ]
    for argument, field in judge.args.model_fields.items():
        need = "required" if field.is_required() else f"default {field.default!r}"
        extra = field.json_schema_extra
        kind = f"a {extra['ref']}" if isinstance(extra, dict) and "ref" in extra else ""
        lines.append(f"  {argument:<10} {'; '.join(w for w in (kind, need, field.description) if w)}")
    return "\n".join(lines)


def _of_spec(loaded: Loaded) -> str:
    spec = loaded.spec
    steps = [f"{type(step).__name__.lower()} {step_name(step)}".strip() for step in spec.steps]
    laws = [f"{get(id_).id} {get(id_).binding}: {get(id_).sentence}" for id_ in spec.proves]
    lines = [
        f"{spec.id}: {spec.title}",
        f"  file       {display(loaded.path)}",
        *_column("proves", laws),
        f"  guard      {spec.guard}" if spec.guard else "",
        f"  rungs      {', '.join(rungs(spec))}" if spec.ladder else "",
        f"  steps      {', '.join(steps)}",
        *_column("controls", [f"{name}: {_said(arm)}" for name, arm in spec.arms.items()]),
        f"  expects    {', '.join(f'{e.id} ({e.requirement})' for e in spec.expect)}",
        f"  kills      {', '.join(spec.kills) or 'claims no fault'}",
    ]
    return "\n".join(line for line in lines if line)


def _column(label: str, lines: Sequence[str]) -> list[str]:
    return [f"  {label if i == 0 else '':<10} {line}" for i, line in enumerate(lines)]


def _said(arm: Arm) -> str:
    """How an arm differs from the main run, as its file says it."""
    said = arm.model_dump(exclude_unset=True, exclude_none=True)
    return json.dumps(said) if said else "the same once more"

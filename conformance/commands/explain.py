"""`python -m conformance explain ID`: a requirement, a judge or a spec.

Knows the command line and how each of them is told. Does not know a running server.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from conformance.commands._specs import add_specs, folders, load
from conformance.dialect import Dialect, dialects
from conformance.evidence import outlook
from conformance.judges import JUDGES
from conformance.load import Loaded
from conformance.marks import display
from conformance.requirements import REQUIREMENTS, Requirement, matching
from conformance.rungs import rungs
from conformance.spec import step_name

if TYPE_CHECKING:
    from conformance.commands import Commands

_TEXT = "a requirement, a judge or a spec"


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("explain", help=_TEXT, description=_TEXT)
    parser.add_argument("id", help="adopt, adopt/1, same_as_solo, adopt/warm-burst")
    add_specs(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    specs, _ = load(folders(args))
    blocks = [
        *(_of_requirement(requirement, specs) for requirement in matching(args.id)),
        *(_of_judge(name) for name in JUDGES if name == args.id),
        *(_of_spec(loaded) for loaded in specs if loaded.spec.id == args.id),
    ]
    if not blocks:
        legal = ", ".join([*REQUIREMENTS, *JUDGES, *(loaded.spec.id for loaded in specs)])
        print(f"nothing is called {args.id!r}; legal: {legal}", file=sys.stderr)
        return 2
    print("\n\n".join(blocks))
    return 0


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
    lines = [
        f"{spec.id}: {spec.title}",
        f"  file       {display(loaded.path)}",
        f"  proves     {', '.join(spec.proves)}",
        f"  guard      {spec.guard}" if spec.guard else "",
        f"  rungs      {', '.join(rungs(spec))}" if spec.ladder else "",
        f"  steps      {', '.join(steps)}",
        f"  expects    {', '.join(f'{e.id} ({e.requirement})' for e in spec.expect)}",
    ]
    return "\n".join(line for line in lines if line)

"""`python -m conformance`: look at specs and the law without a server.

Knows the command line. Does not know pytest; running specs is `pytest conformance/`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance.judges import JUDGES
from conformance.load import Loaded, load_all, spec_files
from conformance.marks import SpecError, display
from conformance.requirements import REQUIREMENTS, Requirement, matching
from conformance.rungs import rungs
from conformance.schema import schema_text
from conformance.spec import step_name

SPECS = Path(__file__).parent.parent / "specs"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 well, 1 something is wrong in a file, 2 wrong usage."""
    args = _parser().parse_args(argv)
    status: int = args.run(args)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m conformance",
        description="Look at conformance specs without a server. To run them: pytest conformance/",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _command(commands, "list", _list, "every spec: id, title, what it proves").add_argument(
        "prefix", nargs="?", default="", help="only ids or requirements that begin with this"
    )
    _command(commands, "validate", _validate, "check files without running them").add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="spec files or folders (default: the shipped ones)",
    )
    _command(commands, "explain", _explain, "a requirement, a judge or a spec").add_argument(
        "id", help="adopt, adopt/1, same_as_solo, adopt/warm-burst"
    )
    _command(commands, "schema", _schema, "print the JSON Schema of spec files").add_argument(
        "--write", type=Path, metavar="FILE", help="write it there instead"
    )
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, run: object, text: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    return command


def _list(args: argparse.Namespace) -> int:
    good, broken = _load(spec_files(SPECS))
    for loaded in good:
        spec = loaded.spec
        if any(word.startswith(args.prefix) for word in (spec.id, *spec.proves)):
            quick = " [quick]" if spec.quick else ""
            print(f"{spec.id}{quick}: {spec.title}\n    proves {', '.join(spec.proves)}")
    return _complain(broken)


def _validate(args: argparse.Namespace) -> int:
    files = [
        path for given in args.files or [SPECS] for path in (spec_files(given) if given.is_dir() else [given])
    ]
    if not files:
        print("no spec file there", file=sys.stderr)
        return 1
    good, broken = _load(files)
    for loaded in good:
        print(f"{display(loaded.path)}: fine")
    return _complain(broken)


def _explain(args: argparse.Namespace) -> int:
    specs, _ = _load(spec_files(SPECS))
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


def _schema(args: argparse.Namespace) -> int:
    if args.write:
        args.write.write_text(schema_text(), encoding="utf-8")
    else:
        print(schema_text(), end="")
    return 0


def _load(files: Sequence[Path]) -> tuple[list[Loaded], list[SpecError]]:
    found = list(load_all(files))
    good = [one for one in found if isinstance(one, Loaded)]
    return good, [one for one in found if isinstance(one, SpecError)]


def _complain(broken: Sequence[SpecError]) -> int:
    for error in broken:
        print(error, file=sys.stderr)
    return 1 if broken else 0


def _of_requirement(requirement: Requirement, specs: Sequence[Loaded]) -> str:
    provers = [loaded.spec.id for loaded in specs if requirement.id in loaded.spec.proves]
    return "\n".join(
        [
            f"{requirement.id} {requirement.binding}: {requirement.sentence}",
            f"  guard      {requirement.guard}",
            f"  proved by  {', '.join(provers) or 'no shipped spec yet'}",
        ]
    )


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


if __name__ == "__main__":
    sys.exit(main())

"""`python -m conformance list [PREFIX]`: every spec, its title and what it proves.

Knows the command line. Does not know what a spec does.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from conformance.commands._specs import add_specs, complain, folders, load
from conformance.spec import Spec

if TYPE_CHECKING:
    from conformance.commands import Commands

_TEXT = "every spec: id, title, what it proves"


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("list", help=_TEXT, description=_TEXT)
    parser.add_argument("prefix", nargs="?", default="", help="only ids or requirements that begin with this")
    add_specs(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    good, broken = load(folders(args))
    found = [one.spec for one in good if any(w.startswith(args.prefix) for w in _words(one.spec))]
    for spec in found:
        quick = " [quick]" if spec.quick else ""
        print(f"{spec.id}{quick}: {spec.title}\n    proves {', '.join(spec.proves)}")
    told = complain(broken)
    if args.prefix and not found:
        areas = sorted({word.partition("/")[0] for one in good for word in _words(one.spec)})
        print(f"nothing begins with {args.prefix!r}; there is: {', '.join(areas)}", file=sys.stderr)
        return 2
    return told


def _words(spec: Spec) -> tuple[str, ...]:
    """By what a spec is found."""
    return (spec.id, *spec.proves)

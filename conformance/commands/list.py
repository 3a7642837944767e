"""`python -m conformance list [PREFIX]`: every spec, its title and what it proves.

Knows the command line. Does not know what a spec does.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from conformance.commands._specs import add_specs, complain, folders, load

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
    for spec in (loaded.spec for loaded in good):
        if any(word.startswith(args.prefix) for word in (spec.id, *spec.proves)):
            quick = " [quick]" if spec.quick else ""
            print(f"{spec.id}{quick}: {spec.title}\n    proves {', '.join(spec.proves)}")
    return complain(broken)

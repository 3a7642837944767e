"""`python -m conformance validate FILE...`: specs and files of known deviations, checked without running.

Knows the command line and how to tell the two kinds of file apart. Does not know what may stand in them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from conformance import catalogue, known, named
from conformance.commands import _specs
from conformance.load import Loaded, load_all, spec_files
from conformance.marks import SpecError, display

if TYPE_CHECKING:
    from conformance.commands import Commands

_TEXT = "check files without running them"


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("validate", help=_TEXT, description=_TEXT)
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="specs, files of known deviations, or folders of them (default: the shipped specs)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    given = args.files or [_specs.SPECS]
    files = [path for one in given for path in (spec_files(one) if one.is_dir() else [one])]
    if not files:
        print("no spec file there", file=sys.stderr)
        return 1
    broken: list[SpecError] = []
    for path in _fine(files, broken):
        print(f"{display(path)}: fine")
    return _specs.complain(broken)


def _fine(files: Sequence[Path], broken: list[SpecError]) -> Iterator[Path]:
    """Those that are well; the errors of the others go to `broken`."""
    deviations = {path for path in files if known.is_expectations(path)}
    for found in load_all((path for path in files if path not in deviations), faults=_claimable):
        if isinstance(found, Loaded):
            yield found.path
        else:
            broken.append(found)
    specs = [*spec_files(_specs.SPECS), *(path for path in files if path not in deviations)]
    for path in sorted(deviations):
        try:
            named.load(path, specs)
            yield path
        except SpecError as error:
            broken.append(error)


@cache
def _claimable() -> Collection[str] | None:
    """Names that `kills` may claim; None, and a word on it, where the engine does not tell them."""
    try:
        return catalogue.listed()
    except catalogue.EngineError as error:
        print(f"claims of `kills` are not checked: {error}", file=sys.stderr)
        return None

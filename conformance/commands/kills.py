"""`python -m conformance kills FILE...`: the kill matrix from what `--report-kills` wrote.

Knows the command line. Does not know what a mutant is (`conformance/kills.py`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from conformance import kills
from conformance.commands import _specs
from conformance.load import load, spec_files

if TYPE_CHECKING:
    from conformance.commands import Commands

_TEXT = "print which requirement kills which fault, from runs with --report-kills"


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("kills", help=_TEXT, description=_TEXT)
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="what --report-kills wrote; the later counts"
    )
    parser.add_argument("--cells", action="store_true", help="every cell, also those outside a fault's class")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write it there instead")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    runs: list[kills.Run] = []
    explored: list[kills.Explored] = []
    for path in args.files:
        try:
            more, hunted = kills.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            print(f"{path}: cannot be read: {_why(error)}", file=sys.stderr)
            return 1
        runs, explored = [*runs, *more], [*explored, *hunted]
    return _put(kills.cells(runs) if args.cells else kills.markdown(runs, _shipped(), explored), args.write)


def _shipped() -> dict[str, str]:
    """The shipped specs, and why each stays."""
    found = (load(path).spec for path in spec_files(_specs.SPECS))
    return {spec.id: spec.stays for spec in found}


def _why(error: OSError | ValueError) -> str:
    return str(error.strerror if isinstance(error, OSError) else error)


def _put(text: str, path: Path | None) -> int:
    if path is None:
        print(text, end="")
        return 0
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"{path}: cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0

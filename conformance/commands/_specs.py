"""What several commands need: the shipped specs and a user's own folders.

Knows where specs are and how a broken file is told. Does not know what a command does with them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from conformance.load import Loaded, load_all, spec_files
from conformance.marks import SpecError

SPECS = Path(__file__).parent.parent.parent / "specs"
"""The shipped cases; a clone has them beside the package."""


def add_specs(parser: argparse.ArgumentParser, text: str = "a folder of your own specs as well") -> None:
    parser.add_argument("--specs", type=Path, action="append", default=[], metavar="DIR", help=text)


def folders(args: argparse.Namespace) -> list[Path]:
    """The shipped folder and those of `--specs`."""
    return [SPECS, *args.specs]


def load(given: Iterable[Path]) -> tuple[list[Loaded], list[SpecError]]:
    """Every spec below the folders, and every file there that is none."""
    found = list(load_all(path for folder in given for path in spec_files(folder)))
    good = [one for one in found if isinstance(one, Loaded)]
    return good, [one for one in found if isinstance(one, SpecError)]


def complain(broken: Iterable[SpecError]) -> int:
    """Tell what is wrong; the exit status: 1 when anything is."""
    errors = list(broken)
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0

"""`python -m conformance schema`: the JSON Schema of spec files, for editors.

Knows the command line. Does not know the language (`conformance/schema.py`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.schema import schema_text

if TYPE_CHECKING:
    from conformance.commands import Commands

_TEXT = "print the JSON Schema of spec files"


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("schema", help=_TEXT, description=_TEXT)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write it there instead")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.write is None:
        print(schema_text(), end="")
        return 0
    try:
        args.write.write_text(schema_text(), encoding="utf-8")
    except OSError as error:
        print(f"{args.write}: cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0

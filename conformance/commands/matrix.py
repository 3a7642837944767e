"""`python -m conformance matrix FILE...`: histories judged again, requirements by targets.

Knows the command line. Does not know how a history is read or judged (`rejudge.py`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.commands._specs import add_specs, complain, folders, load
from conformance.record import HistoryError

if TYPE_CHECKING:
    from conformance.commands import Commands
    from conformance.report.matrix import Column

_TEXT = "judge histories again and show requirements by targets"


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("matrix", help=_TEXT, description=_TEXT)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="histories (.jsonl)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as a JSON document")
    form.add_argument("--markdown", action="store_true", help="as Markdown, with the reasons")
    add_specs(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from conformance.rejudge import columns  # what judges need takes long to import

    specs, broken = load(folders(args))
    try:
        found = columns(args.files, specs)
    except HistoryError as error:
        print(error, file=sys.stderr)
        return 1
    print(_shown(found, args), end="")
    for note in (note for column in found for note in column.notes):
        print(note, file=sys.stderr)
    return complain(broken)


def _shown(found: list[Column], args: argparse.Namespace) -> str:
    from conformance.report import matrix

    if args.json:
        return json.dumps(matrix.as_json(found), indent=2, ensure_ascii=False) + "\n"
    if args.markdown:
        return matrix.markdown(found)
    return matrix.text(found, shutil.get_terminal_size((120, 24)).columns) + "\n"

"""`calibrate URL`: what a running server does with stored prompts, beside what its dialect declares.

Knows how to print a calibration. Does not know how anything is measured (`conformance/calibrate.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from conformance.calibrate import Calibration, calibrate
from conformance.commands import _server
from conformance.report.terminal import facts_line

if TYPE_CHECKING:
    from conformance.commands import Commands


def add_parser(commands: Commands) -> None:
    text = "measure a running server's granule, shortest prefix, reuse of replies, salt and reset"
    parser = commands.add_parser("calibrate", help=text, description=text)
    _server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when nothing speaks against the declaration; 1 when something does, or there is no such server."""
    try:
        with _server.opened(args) as target:
            found, line = calibrate(target), facts_line(target.facts)
    except _server.Refused as refused:
        print(refused, file=sys.stderr)
        return refused.status
    print(json.dumps(found.as_json(), indent=2) if args.json else "\n".join([line, *lines_of(found)]))
    return 1 if found.contradictions else 0


def lines_of(found: Calibration) -> list[str]:
    """Every measure in words, why some are missing, and what contradicts the declaration."""
    least = "one granule" if found.min_prefix == 0 else found.min_prefix
    measured = {
        "granule": found.granule,
        "shortest prefix": least,
        "generated tokens reusable": found.generated_reusable,
        "salt isolates": found.salt_isolates,
        "reset empties the cache": found.reset_empties,
        "requests": found.requests,
    }
    return [
        *(f"  {name:<25}  {_word(value)}" for name, value in measured.items()),
        *(f"note: {note}" for note in found.notes),
        *(f"CONTRADICTION: {said}" for said in found.contradictions),
    ]


def _word(value: object) -> str:
    words = {None: "not found out", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)

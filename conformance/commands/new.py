"""`python -m conformance new area/name`: a commented start of a spec, which validates and runs.

Knows the text of such a start and where it belongs. Does not know what its author wants to find out.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from conformance.commands import _specs as shipped
from conformance.marks import display
from conformance.requirements import AREAS
from conformance.schema import schema_text
from conformance.spec import SpecId

if TYPE_CHECKING:
    from conformance.commands import Commands

SCHEMA = "spec.schema.json"

START = """\
# yaml-language-server: $schema=../spec.schema.json
# Say here in a line or two what goes wrong in a server that fails this case.
# The language: docs/spec-language.md. What a judge wants: python -m conformance explain adopters
spec: 1
id: {id}
title: Four concurrent requests adopt what one request stored   # true when the case passes
# Requirement ids (docs/requirements.md). Each must be judged by an expectation below.
proves: [adopt/1, out/2, count/1]
guard: all four hold tokens at the same moment   # for readers; the judges check it
texts:
  # Random plain tokens, the same on every machine. `prefix` is 3700 tokens, or 570 with --scale ci.
  system: {{tokens: prefix, seed: 1}}
steps:
  # One request stores the prefix. `unique` parts differ from request to request in their first token.
  - send: first
    prompt: [system, {{unique: 16}}]
    max_tokens: 8
  - wait: idle
  # Four at the same moment, each with an end of its own.
  - burst: four
    requests: 4
    prompt: [system, {{unique: 24, seed: 1}}]
    max_tokens: reply
expect:
  # Each line is a pytest item. `as` names another requirement than the judge's own, `id` another item name.
  - adopters: {{of: four}}
  - same_as_solo: {{of: four, as: out/2}}
  - counted: {{of: four}}
"""


def add_parser(commands: Commands) -> None:
    text = "write a commented start of a spec"
    parser = commands.add_parser("new", help=text, description=text)
    parser.add_argument("id", help=f"area/name, for example adopt/my-case; areas: {', '.join(AREAS)}")
    parser.add_argument("--specs", type=Path, metavar="DIR", help="your own folder (default: specs/)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    folder = args.specs or shipped.SPECS
    path = folder / f"{args.id}.yaml"
    if wrong := _wrong(args.id, path):
        print(wrong, file=sys.stderr)
        return 2
    try:
        _write(folder, path, args.id)
    except OSError as error:
        print(f"{display(path)}: cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{display(path)}: written. Next:")
    print(f"    python -m conformance validate {display(path)}")
    print(f"    pytest {display(path)} --scale ci")
    return 0


def _wrong(id_: str, path: Path) -> str:
    """Why nothing is written; empty when all is well."""
    pattern = get_args(SpecId)[1].metadata[0].pattern
    if not re.fullmatch(pattern, id_):
        return f"{id_!r} is no id of a spec: area/name in a-z, 0-9, dot and dash, for example adopt/my-case"
    if any(not part.strip(".") for part in id_.split("/")):
        return f"{id_!r} is no id of a spec: a name of dots alone is no file"
    return f"{display(path)}: is there already, and nothing was changed" if path.exists() else ""


def _write(folder: Path, path: Path, id_: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(START.format(id=id_), encoding="utf-8")
    # The schema helps an editor, and marks the folder as one of specs.
    if not (folder / SCHEMA).exists():
        (folder / SCHEMA).write_text(schema_text(), encoding="utf-8")

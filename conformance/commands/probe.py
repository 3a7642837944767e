"""`probe URL`: the facts of a running server as a run would find them, and what it lacks and why.

Knows facts and how to print them. Sends a few small requests under private salts, and resets nothing unless
that is allowed.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from conformance import preflight
from conformance.commands import _server
from conformance.dialect import Dialect
from conformance.history import Facts
from conformance.report.terminal import facts_line

if TYPE_CHECKING:
    from conformance.commands import Commands


def add_parser(commands: Commands) -> None:
    text = "what a running server is, reports and claims"
    parser = commands.add_parser("probe", help=text, description=text)
    _server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 with the facts on stdout; 1 when there is no server that can be used, or it contradicts itself."""
    try:
        with _server.opened(args) as target:
            facts = preflight.checked(target)
            plain = [*lines_of(facts, target.dialect), *unasked(target.dialect, args.allow)]
            lines = [facts.model_dump_json(indent=2)] if args.json else plain
    except _server.Refused as refused:
        print(refused, file=sys.stderr)
        return refused.status
    print("\n".join(lines))
    return 1 if facts.contradictions or facts.several_caches else 0


def lines_of(facts: Facts, dialect: Dialect) -> list[str]:
    """The line that a run prints, every fact that is known, then what is missing and what it would take."""
    plain = facts.model_dump(exclude={"claims", "machine", "contradictions", "needs"}, exclude_none=True)
    shown = {name: value for name, value in plain.items() if value not in ("", [], {})}
    width = max(map(len, shown))
    return [
        facts_line(facts),
        *(f"  {name:<{width}}  {_word(value)}" for name, value in shown.items()),
        *(f"not there: {name}; it takes {need}" for name, need in lacking(facts).items()),
        *(f"not claimed: {name}, {claim.reason} ({claim.link})" for name, claim in facts.claims.items()),
        *(f"note: {note}" for note in dialect.notes),
        *(f"CONTRADICTION: {said}" for said in facts.contradictions),
    ]


def unasked(dialect: Dialect, allowed: frozenset[str]) -> list[str]:
    """A line on what was not tried, since others may use the server, though its dialect knows a way."""
    ways = {"has_reset": dialect.reset, "can_reload": dialect.reload, "has_test": dialect.test}
    names = [name for name, way in ways.items() if way is not None and "reset" not in allowed]
    return [f"not tried: {', '.join(names)}; it takes --allow reset"] if names else []


def lacking(facts: Facts) -> dict[str, str]:
    """Facts that are not there, of those for which the dialect knows what would bring them."""
    return {name: need for name, need in facts.needs.items() if not getattr(facts, name)}


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)

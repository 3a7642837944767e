"""`dialects [NAME]`: the server families that are known, as a table, or one in full.

Knows dialect files and how to print them. Contacts nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from conformance.dialect import Action, Check, Dialect, Source, Value, dialects

if TYPE_CHECKING:
    from conformance.commands import Commands

_HEAD = ("NAME", "KNOWN BY", "G", "SHARES", "SALT", "RESET", "IDS", "NOT CLAIMED")
_WIDTH = 46


def add_parser(commands: Commands) -> None:
    text = "the server families that are known; NAME shows one in full"
    parser = commands.add_parser("dialects", help=text, description=text)
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0, or 2 for a name that no family has."""
    known = {one.dialect: one for one in dialects()}
    if args.name is None:
        print("\n".join(table([_HEAD, *map(_row, known.values())])))
        return 0
    if args.name not in known:
        print(f"no dialect is called {args.name!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    print("\n".join(lines_of(known[args.name])))
    return 0


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows under each other, columns two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(known: Dialect) -> tuple[str, ...]:
    signs = " + ".join(map(_sign, known.recognise)) or "fits any server"
    return (
        known.dialect,
        signs if len(signs) <= _WIDTH else signs[: _WIDTH - 1] + "…",
        _value(known.facts.get("granule", "measured")),
        _value(known.facts.get("sharing", "?")),
        known.ask.salt or ("bypass" if known.ask.cold else "in the text"),
        _action(known.reset),
        "yes" if known.ask.ids else "no",
        ", ".join(known.claims) or "-",
    )


def _sign(check: Check) -> str:
    if check.host is not None:
        return f"host {check.host}"
    what = check.path or check.text or f"header {check.header}"
    value = f"={check.equals}" if check.equals is not None else f"={check.starts}*" if check.starts else ""
    return f"{check.get} {what}{value}"


def _value(value: Value) -> str:
    return "told" if isinstance(value, Source) else str(value)


def _where(value: Value) -> str:
    if not isinstance(value, Source):
        return str(value)
    return f"told by {value.get} {value.path or value.metric}" + (f" {value.label}" if value.label else "")


def _action(action: Action | None) -> str:
    return f"{action.method} {action.route}" if action else "-"


def lines_of(known: Dialect) -> list[str]:
    """One family in full: signs, what a request carries, facts, gauges, and what is known of its limits."""
    ask = known.ask
    gauges = {stats.get: ", ".join(stats.values) for stats in known.stats}
    parts = {
        "known by": [_sign(check) for check in known.recognise] or ["fits any server"],
        "asks": [f"POST {ask.route} ({ask.form})", *(f"{k}={v}" for k, v in ask.always.items())],
        "cached": known.answer.cached or ["not reported"],
        "facts": [f"{name}: {_where(value)}" for name, value in known.facts.items()],
        "gauges": [f"{route}: {names}" for route, names in gauges.items()],
        "reset": [_action(known.reset)],
        "profiles": [f"{name}: {' '.join(one.args) or 'as it is'}" for name, one in known.profiles.items()],
        "needs": [f"{fact}: {need}" for fact, need in known.needs.items()],
        "not claimed": [f"{name}: {one.reason} ({one.link})" for name, one in known.claims.items()],
        "notes": known.notes,
    }
    lines = [
        f"{label if i == 0 else '':<12}{line}" for label, said in parts.items() for i, line in enumerate(said)
    ]
    return [f"{known.dialect}: {known.name}", *(f"  {line}" for line in lines)]

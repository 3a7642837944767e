"""Texts for the terminal: one failed expectation, one line about the target, the table at the end.

Knows verdicts and the law's sentences, and writes plain strings. Does not know pytest, colours, or how wide a
terminal is unless told. What failed comes first and in the same order everywhere: the requirement, what was
expected, what was observed, the witness, then lines to paste.
"""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.history import Facts
from conformance.requirements import REQUIREMENTS, Level, get
from conformance.verdict import Status, Verdict, for_requirement, worst

WIDTH = 110
REASON = 120
"""Characters of a reason in the table at the end."""

LINES = 64
"""Observed lines that one failure shows: a burst has at most as many requests."""


@dataclass(frozen=True)
class Entry:
    """One judged expectation as a pytest report carries it: plain words, so that it survives xdist."""

    spec: str
    requirement: str
    status: Status
    reason: str = ""
    failed: bool = False
    """Whether the item fails the run; a requirement may pass by other specs."""
    on: str = ""
    """Label of the target, where a run has several."""
    known: str = ""
    """Why it was expected to deviate (`known.py`); still shown as what it is."""


def verdict_text(verdict: Verdict, title: str = "", footer: Sequence[str] = ()) -> str:
    """Everything a user needs to see about one verdict; `footer` holds the lines to paste."""
    law = get(verdict.requirement)
    status = f"{verdict.status}: {verdict.reason}" if verdict.reason else str(verdict.status)
    blocks = {
        "case": [title],
        "verdict": [status],
        "guard": [law.guard if verdict.status is Status.VACUOUS else ""],
        "expected": [verdict.expected],
        "observed": _shortened(verdict.observed),
        "witness": [verdict.witness],
        "note": verdict.notes,
    }
    lines = textwrap.wrap(f"{law.id} {law.binding}: {law.sentence}", WIDTH, subsequent_indent="  ")
    lines += [line for label, said in blocks.items() for line in _block(label, said)]
    return "\n".join([*lines, *(["", *footer] if footer else [])])


def _block(label: str, lines: Sequence[str]) -> list[str]:
    """Lines under a label, wrapped; empty ones are left out, and so is the label of none."""
    wrapped = [part for said in lines for line in said.splitlines() for part in _wrapped(line)]
    return [f"  {label if i == 0 else '':<9} {part}" for i, part in enumerate(wrapped)]


def _wrapped(line: str) -> list[str]:
    # An indented line is laid out by its author: a caret under its place, the last words of a server.
    return [line] if line.startswith(" ") else textwrap.wrap(line, WIDTH - 12, subsequent_indent="  ")


def _shortened(lines: Sequence[str]) -> list[str]:
    left_out = len(lines) - LINES
    return [*lines[:LINES], f"and {left_out} more"] if left_out > 0 else list(lines)


def skip_reason(verdict: Verdict) -> str:
    """One line for a verdict that skips the item, with what was seen (k of N adopted) where there is any."""
    notes = f" [{'; '.join(verdict.notes)}]" if verdict.notes else ""
    return f"{verdict.requirement} {verdict.status}: {verdict.reason or verdict.witness}{notes}"


def facts_line(facts: Facts) -> str:
    """The target in one line: who it is, its units, what it shares and what it lets a client see."""
    name = " ".join(word for word in (facts.name, facts.version) if word)
    parts = [
        name,
        facts.model,
        _units(facts),
        f"sharing {facts.sharing}",
        f"grade {facts.grade}",
        _shows(facts),
        f"SEVERAL CACHES: {facts.several_caches}" if facts.several_caches else "",
        *(f"CONTRADICTS its dialect: {said}" for said in facts.contradictions),
    ]
    return " · ".join(part for part in parts if part)


def _units(facts: Facts) -> str:
    known = {"B": facts.block, "G": facts.granule, "C": facts.chunk, "pool": facts.pool_blocks}
    return " ".join(f"{name} {'?' if value is None else value}" for name, value in known.items())


_SHOWN = {
    "cached tokens": "reports_cached",
    "ids in": "takes_ids",
    "ids out": "returns_ids",
    "logprobs": "has_logprobs",
    "salt": "has_salt",
    "reset": "has_reset",
    "statistics": "has_stats",
}
"""What a client may see, and the fact that says so."""


def _shows(facts: Facts) -> str:
    has = [word for word, fact in _SHOWN.items() if getattr(facts, fact)]
    lacking = [_lack(word, facts.needs.get(fact)) for word, fact in _SHOWN.items() if word not in has]
    return "shows " + (", ".join(has) or "nothing") + _without(lacking)


def _lack(word: str, need: str | None) -> str:
    return f"{word} (takes {need})" if need else word


def _without(lacking: Sequence[str]) -> str:
    return f"; lacks {', '.join(lacking)}" if lacking else ""


def by_requirement(entries: Iterable[Entry]) -> dict[str, Status]:
    """One status a requirement: the worst within each spec, then merged over specs (law, Verdicts)."""
    specs: dict[str, dict[str, list[Status]]] = {}
    for entry in entries:
        specs.setdefault(entry.requirement, {}).setdefault(entry.spec, []).append(entry.status)
    return {req: for_requirement(map(_of_spec, of.values())) for req, of in specs.items()}


def _of_spec(statuses: Sequence[Status]) -> Status:
    """An expectation that was not run says nothing about what its neighbours found."""
    ran = [status for status in statuses if status is not Status.NOT_RUN]
    return worst(ran or statuses)


def unjudged(entries: Iterable[Entry], wanted: Iterable[str]) -> list[str]:
    """Which of the wanted requirements were neither judged nor declared as not claimed."""
    statuses = by_requirement(entries)
    judged = (Status.PASS, Status.FAIL, Status.NOT_CLAIMED)
    return [requirement for requirement in wanted if statuses.get(requirement) not in judged]


def end_table(entries: Sequence[Entry], width: int = WIDTH) -> str:
    """Requirement by verdict, worst first; what did not pass says why. Empty when nothing was judged."""
    statuses = by_requirement(entries)
    if not statuses:
        return ""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in ("requirement", "level", "verdict", "items"):
        table.add_column(header, no_wrap=True)
    table.add_column("what it says", ratio=1)
    for requirement in sorted(statuses, key=lambda r: (_rank(statuses[r]), _place(r))):
        table.add_row(*_row(requirement, statuses[requirement], entries))
    return "\n".join([_plain(table, width), *_summary(statuses, entries)])


def _rank(status: Status) -> int:
    return list(Status).index(status)


def _place(requirement: str) -> int:
    return list(REQUIREMENTS).index(requirement)


def _row(requirement: str, status: Status, entries: Sequence[Entry]) -> list[Text]:
    law = get(requirement)
    own = [entry for entry in entries if entry.requirement == requirement]
    why = reason_of(entries, requirement, status)
    # A sentence is cut to one line, a reason is shown whole.
    says = Text(why) if why else Text(law.sentence, no_wrap=True, overflow="ellipsis")
    return [*(Text(word) for word in (requirement, law.level, status, _counts(own))), says]


def reason_of(entries: Iterable[Entry], requirement: str, status: Status) -> str:
    """The first reason of those that share the status, cut; the failures say everything. Empty for a pass."""
    if status is Status.PASS:
        return ""
    own = [e for e in entries if e.requirement == requirement and e.status == status and e.reason]
    return _first(list(dict.fromkeys(entry.reason for entry in own)))


def _first(reasons: Sequence[str]) -> str:
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return textwrap.shorten(reasons[0].splitlines()[0], REASON, placeholder=" …") + more if reasons else ""


def _counts(entries: Sequence[Entry]) -> str:
    counts = Counter(entry.status for entry in entries)
    return ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])


def _plain(table: Table, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _summary(statuses: Mapping[str, Status], entries: Sequence[Entry]) -> list[str]:
    """A line a level on what passed and what did not, and one on what was not run."""
    parts = [_tally(level, statuses, entries) for level in Level]
    return [part for part in [*parts, _not_run(entries)] if part]


def _tally(level: Level, statuses: Mapping[str, Status], entries: Sequence[Entry]) -> str:
    of_level = sorted((r for r in statuses if get(r).level is level), key=_place)
    named = {status: [r for r in of_level if statuses[r] is status] for status in Status}
    passed = named.pop(Status.PASS)
    others = [f"{len(ids)} {status} ({', '.join(ids)})" for status, ids in named.items() if ids]
    parts = [f"{len(passed)} of {len(of_level)} pass", *others, *_hidden(passed, entries)]
    return f"{level}: {', '.join(parts)}" if of_level else ""


def _hidden(passed: Sequence[str], entries: Sequence[Entry]) -> list[str]:
    """Items that fail the run although their requirement passes, by another spec."""
    counts = Counter((e.requirement, e.status) for e in entries if e.failed and e.requirement in passed)
    return [
        f"{count} {status} item{'s fail' if count > 1 else ' fails'} the run ({requirement})"
        for (requirement, status), count in counts.items()
    ]


def _not_run(entries: Sequence[Entry]) -> str:
    reasons = [entry.reason for entry in entries if entry.status is Status.NOT_RUN]
    known = list(dict.fromkeys(reason for reason in reasons if reason))
    return f"{len(reasons)} not run: {_first(known)}".rstrip(": ") if reasons else ""

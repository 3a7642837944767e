"""The kill matrix: mutants of the engine by requirements, from what single runs of a mutant found.

Knows runs as plain values, as a report or a file holds them, and writes text, Markdown and JSON. Does not
know pytest, the engine, or when a mutant counts as killed (`mutation.py`). Nothing in the Markdown depends on
time or place: made again elsewhere, it is the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.explore.beyond import BEYOND
from conformance.mutation import Fate, fate_of
from conformance.requirements import REQUIREMENTS
from conformance.verdict import Status

FORMAT = 1
"""Version of the JSON document."""

Run = Mapping[str, Any]
"""One spec on one mutant: `fault`, `bug_class`, `symptom`, `breaks`, `spec`, `claimed`, `fate`, `reason`,
`seconds` and `cells`, each with `expectation`, `requirement`, `status` and `witness`."""

Explored = Mapping[str, Any]
"""What the explorer made of one mutant: `fault`, `examples` and `by`, requirements; empty when not found."""


@dataclass(frozen=True)
class Mutant:
    """A mutant and every run of it, in the order of their specs."""

    name: str
    runs: Sequence[Run]

    @property
    def bug_class(self) -> str:
        return str(self.runs[0]["bug_class"])

    @property
    def symptom(self) -> str:
        return str(self.runs[0]["symptom"])

    @property
    def breaks(self) -> Sequence[str]:
        return [str(id_) for id_ in self.runs[0]["breaks"]]

    @property
    def fate(self) -> Fate:
        """The best of its runs: one spec that kills is proof enough."""
        fates = {Fate(run["fate"]) for run in self.runs}
        return next(fate for fate in Fate if fate in fates)

    @property
    def claimed_by(self) -> list[str]:
        return [run["spec"] for run in self.runs if run["claimed"]]

    def cells(self) -> dict[str, Fate]:
        """What each requirement that was judged made of it, in the order of the law."""
        seen = {cell["requirement"] for run in self.runs for cell in run["cells"]}
        return {id_: self._cell(id_) for id_ in REQUIREMENTS if id_ in seen}

    def _cell(self, requirement: str) -> Fate:
        fates = {fate_of(_statuses(run, requirement)) for run in self.runs} - {Fate.NOT_RUN}
        return next(fate for fate in Fate if fate in fates)

    def killers(self, requirement: str) -> list[str]:
        """Specs that kill it by this requirement."""
        return [run["spec"] for run in self.runs if Status.FAIL in _statuses(run, requirement)]

    def own(self, fate: Fate) -> list[str]:
        """The requirements that its class breaks and that made this of it."""
        return [id_ for id_, found in self.cells().items() if found is fate and id_ in self.breaks]


def _statuses(run: Run, requirement: str) -> set[Status]:
    return {Status(cell["status"]) for cell in run["cells"] if cell["requirement"] == requirement}


def mutants(runs: Iterable[Run]) -> list[Mutant]:
    """By class and name. Of two runs of one mutant by one spec the later one counts."""
    last = {(run["fault"], run["spec"]): run for run in runs}
    ordered = sorted(last.values(), key=lambda run: (run["bug_class"], run["fault"], run["spec"]))
    names = dict.fromkeys(run["fault"] for run in ordered)
    return [Mutant(name, [run for run in ordered if run["fault"] == name]) for name in names]


def lines(runs: Iterable[Run]) -> list[str]:
    """The matrix for the end of a run: a line a mutant, then how many were killed."""
    found = mutants(runs)
    wide = max((len(mutant.name) for mutant in found), default=0)
    table = [f"{m.name:<{wide}}  {m.bug_class}  {m.fate:<8}  {_summary(m)}" for m in found]
    killed = sum(mutant.fate is Fate.KILLED for mutant in found)
    pairs = [run for mutant in found for run in mutant.runs if run["claimed"]]
    kept = sum(run["fate"] == Fate.KILLED for run in pairs)
    return [*table, f"faults: {killed} of {len(found)} killed, by {kept} of {len(pairs)} claims of a spec"]


def alive(runs: Iterable[Run]) -> list[str]:
    """Mutants that nothing killed, those apart that this machine cannot show."""
    return [m.name for m in mutants(runs) if m.fate not in (Fate.KILLED, Fate.NOT_RUN)]


def _summary(mutant: Mutant) -> str:
    if mutant.fate is not Fate.KILLED:
        return next((run["reason"] for run in mutant.runs if run["fate"] == mutant.fate), "")
    rest = [f"{fate}: {', '.join(ids)}" for fate in _QUIET if (ids := mutant.own(fate))]
    return "; ".join([f"by {_by(mutant)}", *rest])


_QUIET = (Fate.ERROR, Fate.VACUOUS, Fate.SURVIVED)


def _by(mutant: Mutant) -> str:
    return ", ".join(f"{id_} ({', '.join(mutant.killers(id_))})" for id_ in mutant.own(Fate.KILLED))


def as_json(runs: Iterable[Run], explored: Iterable[Explored] = ()) -> str:
    """The document that `python -m conformance kills` reads."""
    found = [run for mutant in mutants(runs) for run in mutant.runs]
    document = {"format": FORMAT, "runs": found, "explored": list(explored)}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def from_json(text: str) -> tuple[list[Run], list[Explored]]:
    """The runs of a document, and what was explored. Raises ValueError for one of another kind."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("format") != FORMAT or "runs" not in document:
        raise ValueError("not what --report-kills writes")
    return list(document["runs"]), list(document.get("explored", ()))


HEAD = ("mutant", "class", "what a user would see", "breaks", "claimed by", "fate", "killed by", "not by")


def markdown(
    runs: Iterable[Run], specs: Mapping[str, str] | None = None, explored: Iterable[Explored] = ()
) -> str:
    """docs/kill-matrix.md: rows by mutant, by requirement and by spec, and what the explorer found by itself.

    `specs`: ids, each with the sentence why it stays, empty where it has none.
    """
    found = mutants(runs)
    classes = len({mutant.bug_class for mutant in found})
    killed = sum(mutant.fate is Fate.KILLED for mutant in found)
    parts = [
        _INTRODUCTION,
        f"{len(found)} mutants of {classes} classes, {killed} killed.\n",
        _table(HEAD, [_mutant_row(mutant) for mutant in found]),
        "## By requirement\n",
        _table(("requirement", "mutants it kills"), _requirement_rows(found)),
        "## By spec\n",
        _table(("spec", "mutants that only it kills, or why it stays"), _spec_rows(found, specs or {})),
        *hunted(explored),
    ]
    return "\n".join(parts)


HUNTED = ("mutant", "found after", "by, or why not")


def hunted(explored: Iterable[Explored]) -> list[str]:
    """The part of the document on the explorer; nothing where nothing was explored."""
    last = {told["fault"]: told for told in explored}
    rows = [_hunted_row(last[name]) for name in sorted(last)]
    found = sum(bool(told["by"]) for told in last.values())
    head = f"{_EXPLORER}\n{found} of {len(last)} mutants found.\n"
    return [head, _table(HUNTED, rows)] if last else []


_EXPLORER = """## By the explorer

Workloads that nobody wrote (`docs/explorer.md`): after how many of them the first one failed that passes on
the healthy engine, and by which requirement. Made by

    pytest conformance/ --explore 500 --explore-fault all --report-kills explored.json
    python -m conformance kills kills.json explored.json --write docs/kill-matrix.md
"""


def _hunted_row(told: Explored) -> list[str]:
    if told["by"]:
        return [f"`{told['fault']}`", str(told["examples"]), ", ".join(told["by"])]
    return [f"`{told['fault']}`", "not found", BEYOND.get(told["fault"], f"not in {told['examples']}")]


_INTRODUCTION = """# Kill matrix

What a pass of this suite is worth: every fault that the bundled engine can be built with
(`python -m engine faults`), and what the specs that claim to catch it said of it. Killed means that a
requirement which the fault's class breaks said `fail`, with a witness; a crash, a timeout or a guard that was
not met kills nothing. Made by

    pytest conformance/ --faults all --scale ci -n 2 --report-kills kills.json
    python -m conformance kills kills.json --write docs/kill-matrix.md

`killed by` names the requirement and, in parentheses, the specs; `not by` what the class breaks as well, and
what the specs that claim the fault made of it.
"""


def _mutant_row(mutant: Mutant) -> list[str]:
    others = [f"{id_} {fate}" for fate in _QUIET for id_ in mutant.own(fate)]
    return [
        f"`{mutant.name}`",
        mutant.bug_class,
        mutant.symptom,
        ", ".join(mutant.breaks),
        ", ".join(mutant.claimed_by),
        str(mutant.fate),
        _by(mutant),
        ", ".join(others),
    ]


def _requirement_rows(found: Sequence[Mutant]) -> list[list[str]]:
    killing = {id_: [m.name for m in found if id_ in m.own(Fate.KILLED)] for id_ in REQUIREMENTS}
    return [[id_, ", ".join(f"`{name}`" for name in names) or "none"] for id_, names in killing.items()]


def _spec_rows(found: Sequence[Mutant], specs: Mapping[str, str]) -> list[list[str]]:
    by = {m.name: {spec for id_ in m.own(Fate.KILLED) for spec in m.killers(id_)} for m in found}
    alone = {id_: ", ".join(f"`{name}`" for name, killers in by.items() if killers == {id_}) for id_ in specs}
    return [[id_, alone[id_] or stays] for id_, stays in sorted(specs.items())]


def cells(runs: Iterable[Run]) -> str:
    """Every cell, mutants by requirements, as a Markdown table; a fail outside a mutant's class is small."""
    found = mutants(runs)
    judged = [id_ for id_ in REQUIREMENTS if any(id_ in mutant.cells() for mutant in found)]
    rows = [[f"`{m.name}`", *(_letter(m, id_) for id_ in judged)] for m in found]
    return f"{_LEGEND}\n{_table(('mutant', *judged), rows)}"


_LEGEND = """K killed by a requirement that its class breaks, k failed by another one, s survived, e error,
v vacuous.
"""


def _letter(mutant: Mutant, requirement: str) -> str:
    fate = mutant.cells().get(requirement)
    letter = "" if fate is None else str(fate)[0]
    return letter.upper() if fate is Fate.KILLED and requirement in mutant.breaks else letter


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))

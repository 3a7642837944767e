"""Faults against the specs that claim to catch them: the proof that a pass means something.

Knows what killing a fault means. Does not know how a fault works (`engine.faults`), how a workload runs
(`session.py`) or pytest. A fault is killed only by a `fail` on a requirement its class breaks: a crash, a
timeout or a vacuous verdict kills nothing (design, section 7).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from conformance.verdict import Status, Verdict


class FaultLike(Protocol):
    """What a fault says of itself."""

    @property
    def name(self) -> str: ...
    @property
    def symptom(self) -> str: ...
    @property
    def breaks(self) -> tuple[str, ...]: ...
    @property
    def needs(self) -> str: ...


class Fate(StrEnum):
    """What became of a fault. Only `killed` is a proof."""

    KILLED = "killed"
    SURVIVED = "survived"
    ERROR = "error"
    VACUOUS = "vacuous"
    NOT_RUN = "not-run"


@dataclass(frozen=True)
class Cell:
    """One expectation judged on the faulty engine."""

    spec: str
    expectation: str
    verdict: Verdict


@dataclass(frozen=True)
class Autopsy:
    """A fault's fate and the cells it follows from."""

    fault: str
    fate: Fate
    cells: tuple[Cell, ...]
    killers: tuple[Cell, ...] = ()
    reason: str = ""

    @property
    def summary(self) -> str:
        """One line for the end table."""
        if self.killers:
            by = dict.fromkeys(f"{cell.verdict.requirement} ({cell.spec})" for cell in self.killers)
            return f"by {', '.join(by)}"
        return self.reason


def examine(fault: FaultLike, cells: Sequence[Cell]) -> Autopsy:
    """A fault's fate from everything that was judged while the engine had it."""
    killers = tuple(cell for cell in cells if _kills(fault, cell))
    if killers:
        return Autopsy(fault.name, Fate.KILLED, tuple(cells), killers)
    asked = [cell for cell in cells if cell.verdict.requirement in fault.breaks]
    # A fail without a witness is not taken for one.
    fate = fate_of(
        {Status.PASS if cell.verdict.status is Status.FAIL else cell.verdict.status for cell in asked}
    )
    return Autopsy(fault.name, fate, tuple(cells), reason=_why(fault, asked))


def _kills(fault: FaultLike, cell: Cell) -> bool:
    """A fail that nobody can argue for proves nothing: the witness names the symptom."""
    is_fail = cell.verdict.status is Status.FAIL and bool(cell.verdict.witness)
    return is_fail and cell.verdict.requirement in fault.breaks


def fate_of(statuses: Set[Status]) -> Fate:
    """What one requirement made of a fault, from everything that was judged under it."""
    if not statuses:
        return Fate.NOT_RUN
    if Status.FAIL in statuses:
        return Fate.KILLED
    if statuses & {Status.ERROR, Status.TIMEOUT}:
        return Fate.ERROR
    return Fate.SURVIVED if Status.PASS in statuses else Fate.VACUOUS


def _why(fault: FaultLike, asked: Sequence[Cell]) -> str:
    if not asked:
        return f"no spec that claims to kill it judges {' or '.join(fault.breaks)}"
    seen = ", ".join(f"{cell.spec} {cell.verdict.requirement} {cell.verdict.status}" for cell in asked)
    return f"no judge of {', '.join(fault.breaks)} said fail: {seen}"


def report(fault: FaultLike, autopsy: Autopsy) -> str:
    """What a user reads of a fault that was not killed, or of one whose kill is looked at."""
    lines = [
        f"fault {fault.name}: {autopsy.fate}",
        f"  symptom   {fault.symptom}",
        f"  breaks    {', '.join(fault.breaks)}",
        *(f"  {_row(cell)}" for cell in autopsy.cells),
    ]
    lines += [f"  reason    {autopsy.reason}"] if autopsy.reason else []
    return "\n".join([*lines, *_witnesses(autopsy.killers)])


def _row(cell: Cell) -> str:
    return f"{cell.verdict.status:<12} {cell.spec}::{cell.expectation} ({cell.verdict.requirement})"


def _witnesses(killers: Iterable[Cell]) -> list[str]:
    return [f"  witness   {cell.verdict.requirement}: {cell.verdict.witness}" for cell in killers]

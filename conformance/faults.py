"""`--faults`: each spec that claims to kill a fault, run on the bundled engine with that fault.

Knows pytest's items and how to build a run with a fault. Does not know what a fault does (`engine.faults`) or
when it counts as killed (`mutation.py`). The healthy engine runs the same specs as ordinary items beside
these: a spec that fails everybody proves nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from difflib import get_close_matches
from functools import cache, reduce
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.catalogue import AND, EngineError, KnownFault, listed
from conformance.conclude import ItemFailure
from conformance.load import Loaded
from conformance.mutation import Autopsy, Cell, Fate, examine, report
from conformance.rungs import rungs
from conformance.session import Session
from conformance.verdict import Status

if TYPE_CHECKING:
    from conformance.collect import SpecFile

NEEDS = {"openblas": ("--blas", "auto")}
"""What a fault may need, and the engine flags that give it."""

FAULT_TIMEOUT = 20.0
"""Seconds that one request to a faulty engine may take: some faults hang, which must be seen in time too."""

_PAIRS = "pairs:"

RUN: pytest.StashKey[FaultRun] = pytest.StashKey()


class FaultRun:
    """The faults that a run was asked for, and how to open a session on an engine that has one."""

    def __init__(
        self,
        chosen: Sequence[KnownFault],
        open_session: Callable[[str | None, tuple[str, ...], str], Session],
        cross: bool = False,
        shared: bool = False,
    ) -> None:
        """`open_session(fault, engine flags, label of the history)`; fault None is the healthy engine.

        `cross`: every spec of the quick set runs against every fault, claimed or not. `shared`: all specs of
        a fault share one engine, until it dies; to start one for each would double the time. The healthy
        engine that some faults are compared with (all with the same flags, `NEEDS`) is shared by them all.
        """
        self.chosen = tuple(chosen)
        self.open_session = open_session
        self.cross, self.shares = cross, shared
        self._shared: dict[str | None, Session] = {}

    def may_ask(self, text: str) -> bool:
        """Whether a file of this text can have anything to do with a few faults: to read YAML takes longer
        than all else about a file that does not name them. A run with every fault reads every file, so that
        a misspelt name is told."""
        few = len(self.chosen) < len(known())
        return self.cross or not few or any(name in text for fault in self.chosen for name in fault.names)

    def against(self, loaded: Loaded) -> list[KnownFault]:
        """Chosen faults that this spec runs against."""
        everyone = self.cross and loaded.spec.quick
        return [fault for fault in self.chosen if everyone or _claims(loaded, fault)]

    def session(
        self, fault: str | None, flags: tuple[str, ...], label: str
    ) -> AbstractContextManager[Session]:
        """A session for one spec; whoever leaves the context closes it, unless it is shared."""
        if not self.shares:
            return closing(self.open_session(fault, flags, label))
        # The healthy engine stays beside every fault, and a fault's engine while the healthy one is asked.
        wanted = {None, fault} if fault is not None else self._shared.keys()
        self._end([name for name, kept in self._shared.items() if kept.dead or name not in wanted])
        if fault not in self._shared:
            self._shared[fault] = self.open_session(fault, flags, label)
        return nullcontext(self._shared[fault])

    def close(self) -> None:
        """Close what is shared, if anything is."""
        self._end(list(self._shared))

    def _end(self, faults: Sequence[str | None]) -> None:
        for fault in faults:
            self._shared.pop(fault).close()


@cache
def known() -> dict[str, KnownFault]:
    """The bundled engine's faults by name. Raises UsageError where it does not start."""
    try:
        return listed()
    except EngineError as error:
        raise pytest.UsageError(f"--faults: {error}") from None


def choose(asked: str, option: str = "--faults") -> list[KnownFault]:
    """`all`, names with commas between, pairs as A+B, or `pairs:N` of them at random (`pairs:N:SEED`).

    Raises UsageError with the names that come close.
    """
    if asked.startswith(_PAIRS):
        return _sample(asked, option)
    names = list(known()) if asked == "all" else [name.strip() for name in asked.split(",") if name.strip()]
    unknown = [one for name in names for one in name.split(AND) if one not in known()]
    if unknown or not names:
        near = [name for word in unknown for name in get_close_matches(word, known(), n=3)]
        hint = f"; did you mean {', '.join(near)}?" if near else ";"
        raise pytest.UsageError(
            f"{option} {', '.join(unknown) or repr(asked)}: no fault of that name{hint} "
            "`python -m engine faults` lists them"
        )
    return [reduce(KnownFault.beside, (known()[one] for one in name.split(AND))) for name in names]


def _sample(asked: str, option: str) -> list[KnownFault]:
    """Pairs at random, the same for the same seed."""
    count, _, seed = asked.removeprefix(_PAIRS).partition(":")
    pairs = list(combinations(known().values(), 2))
    if not count.isdecimal() or not 0 < int(count) <= len(pairs) or (seed and not seed.isdecimal()):
        right = f"pairs:N or pairs:N:SEED with N from 1 to {len(pairs)}, such as pairs:100"
        raise pytest.UsageError(f"{option} {asked}: should be {right}")
    chosen = random.Random(int(seed or 0)).sample(pairs, int(count))
    return [one.beside(other) for one, other in chosen]


def _claims(loaded: Loaded, fault: KnownFault) -> bool:
    """Whether a spec says that it kills this fault, or one of a pair."""
    return any(name in loaded.spec.kills for name in fault.names)


class FaultItem(pytest.Item):
    """One spec against one fault; passes when the fault is killed."""

    def __init__(self, *, loaded: Loaded, fault: KnownFault, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.loaded, self.fault = loaded, fault
        self.evidence: dict[str, Any] | None = None
        """What was found, once the fault was examined."""
        if loaded.spec.quick:
            self.add_marker(pytest.mark.quick)

    @classmethod
    def make(cls, parent: SpecFile, loaded: Loaded, fault: KnownFault) -> FaultItem:
        item: FaultItem = cls.from_parent(parent, name=f"fault[{fault.name}]", loaded=loaded, fault=fault)
        return item

    @property
    def claimed(self) -> bool:
        """Whether the spec says that it kills the fault, or one of a pair."""
        return _claims(self.loaded, self.fault)

    @property
    def owed(self) -> bool:
        """Whether this spec alone must kill it. One of a pair may keep a spec from seeing the other."""
        return self.claimed and len(self.fault.names) == 1

    def runtest(self) -> None:
        if self.fault.lacks:
            reason = f"{self.fault.name} shows only with {self.fault.lacks}, which is not installed"
            self._record(Autopsy(self.fault.name, Fate.NOT_RUN, (), reason=reason))
            raise pytest.skip.Exception(reason, _use_item_location=True)
        autopsy = self._control() or examine(self.fault, self._cells(self.fault.name))
        self._record(autopsy)
        if self.owed and autopsy.fate is not Fate.KILLED:
            raise ItemFailure(report(self.fault, autopsy))

    def _control(self) -> Autopsy | None:
        """Where a fault needs other flags than the healthy items ran with, the healthy engine goes first."""
        if not self.fault.needs:
            return None
        bad = [cell for cell in self._cells(None) if cell.verdict.status in _ACCUSES]
        if not bad:
            return None
        reason = "the healthy engine fails the same spec with the same flags"
        return Autopsy(self.fault.name, Fate.ERROR, tuple(bad), reason=reason)

    def _cells(self, fault: str | None) -> list[Cell]:
        flags = NEEDS.get(self.fault.needs, ())
        label = f"{fault or 'healthy-for-' + self.fault.name}-{self.loaded.spec.id.replace('/', '-')}"
        with self.config.stash[RUN].session(fault, flags, label) as session:
            return [
                Cell(self.loaded.spec.id, expect.id, session.verdict(self.loaded, rung, expect))
                for rung in rungs(self.loaded.spec)
                for expect in self.loaded.spec.expect
                if expect.judge != "golden"
            ]

    def _record(self, autopsy: Autopsy) -> None:
        """A run as `kills.py` reads it; plain values, which survive xdist."""
        told = self.fault.model_dump(mode="json", include={"bug_class", "symptom", "breaks"})
        run = {"fault": self.fault.name, **told, "spec": self.loaded.spec.id, "claimed": self.claimed}
        found = {"fate": str(autopsy.fate), "reason": autopsy.reason}
        self.evidence = {"kill": run | found | {"cells": [_plain(cell) for cell in autopsy.cells]}}

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, 0, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ItemFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


def _plain(cell: Cell) -> dict[str, str]:
    verdict = cell.verdict
    return {
        "expectation": cell.expectation,
        "requirement": verdict.requirement,
        "status": str(verdict.status),
        "witness": verdict.witness,
    }


_ACCUSES = {Status.FAIL, Status.ERROR, Status.TIMEOUT, Status.VACUOUS}

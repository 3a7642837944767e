"""`--faults`: each spec that claims to kill a fault, run on the bundled engine with that fault.

Knows pytest's items and how to build a run with a fault. Does not know what a fault does (`engine.faults`) or
when it counts as killed (`mutation.py`). The healthy engine runs the same specs as ordinary items beside
these: a spec that fails everybody proves nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, TypeAdapter

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

RUN: pytest.StashKey[FaultRun] = pytest.StashKey()


class FaultRun:
    """The faults that a run was asked for, and how to open a session on an engine that has one."""

    def __init__(
        self,
        chosen: Sequence[KnownFault],
        open_session: Callable[[str | None, tuple[str, ...], str], Session],
    ) -> None:
        """`open_session(fault, engine flags, label of the history)`; fault None is the healthy engine."""
        self.chosen = tuple(chosen)
        self.open_session = open_session

    def against(self, loaded: Loaded) -> list[KnownFault]:
        """Chosen faults that this spec claims to kill."""
        return [fault for fault in self.chosen if fault.name in loaded.spec.kills]


class KnownFault(BaseModel):
    """A fault as `python -m engine faults --json` tells it."""

    name: str
    bug_class: str
    symptom: str
    breaks: tuple[str, ...]
    needs: str
    lacks: str
    """What this machine has not got, without which the fault does not show."""


@cache
def known() -> dict[str, KnownFault]:
    """The bundled engine's faults by name; asked of the engine, so that nothing of it is imported here."""
    command = [sys.executable, "-m", "engine", "faults", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if answer.returncode:
        raise pytest.UsageError(f"--faults: the bundled engine does not start: {answer.stderr.strip()}")
    return {fault.name: fault for fault in TypeAdapter(list[KnownFault]).validate_json(answer.stdout)}


def choose(asked: str) -> list[KnownFault]:
    """`all`, or names with commas between. Raises UsageError with the known names."""
    names = list(known()) if asked == "all" else [name.strip() for name in asked.split(",") if name.strip()]
    unknown = [name for name in names if name not in known()]
    if unknown or not names:
        wrong = ", ".join(unknown) or repr(asked)
        raise pytest.UsageError(f"--faults {wrong}: all, or one of {', '.join(known())}")
    return [known()[name] for name in names]


class FaultItem(pytest.Item):
    """One spec against one fault; passes when the fault is killed."""

    def __init__(self, *, loaded: Loaded, fault: KnownFault, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.loaded, self.fault = loaded, fault
        if loaded.spec.quick:
            self.add_marker(pytest.mark.quick)

    @classmethod
    def make(cls, parent: SpecFile, loaded: Loaded, fault: KnownFault) -> FaultItem:
        item: FaultItem = cls.from_parent(parent, name=f"fault[{fault.name}]", loaded=loaded, fault=fault)
        return item

    def runtest(self) -> None:
        if self.fault.lacks:
            reason = f"{self.fault.name} shows only with {self.fault.lacks}, which is not installed"
            raise pytest.skip.Exception(reason, _use_item_location=True)
        autopsy = self._control() or examine(self.fault, self._cells(self.fault.name))
        self._record(autopsy)
        if autopsy.fate is not Fate.KILLED:
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
        session = self.config.stash[RUN].open_session(fault, flags, label)
        try:
            return [
                Cell(self.loaded.spec.id, expect.id, session.verdict(self.loaded, rung, expect))
                for rung in rungs(self.loaded.spec)
                for expect in self.loaded.spec.expect
                if expect.judge != "golden"
            ]
        finally:
            session.close()

    def _record(self, autopsy: Autopsy) -> None:
        self.user_properties += [
            ("fault", autopsy.fault),
            ("fate", str(autopsy.fate)),
            ("fault_summary", autopsy.summary),
        ]

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, 0, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ItemFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


_ACCUSES = {Status.FAIL, Status.ERROR, Status.TIMEOUT, Status.VACUOUS}

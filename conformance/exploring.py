"""`--explore`: the hunt of `conformance/explore/` as pytest items, one for the target or one for each fault.

Knows pytest's items and how the hunt is started and reports. Does not know how workloads are made up. The
hunt runs in a process of its own, since the engine may live in it, and an engine must not live where tests
are collected.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.catalogue import KnownFault
from conformance.conclude import ItemFailure
from conformance.explore.beyond import BEYOND
from conformance.faults import NEEDS
from conformance.mutation import Fate

HUNT: pytest.StashKey[Hunting] = pytest.StashKey()

SECONDS = 600.0
"""For one hunt, unless told otherwise."""
NUMERIC_SECONDS = 60.0
"""For a fault that only shows where numbers are computed, which is slow."""
_GRACE = 240.0
"""Seconds beyond those: to make a failure smaller, to start, to write."""


@dataclass(frozen=True)
class Hunting:
    """What was asked for; `target` are options of `python -m conformance.explore`."""

    examples: int
    seed: int
    seconds: float | None
    faults: tuple[KnownFault, ...] = ()
    target: tuple[str, ...] = ()
    engine_args: tuple[str, ...] = ()

    def command(self, fault: KnownFault | None) -> list[str]:
        """The hunt's command line; a fault that needs more than digests gets the model with weights."""
        numeric = fault is not None and bool(fault.needs)
        flags = [*self.engine_args, *(("--model", "tiny", *NEEDS[fault.needs]) if fault and numeric else ())]
        words = [sys.executable, "-m", "conformance.explore", str(self.examples), "--json"]
        words += ["--seed", str(self.seed), "--seconds", f"{self.limit(fault):g}", *self.target]
        words += ["--engine-args", shlex.join(flags)] if flags else []
        return [*words, *(("--fault", fault.name) if fault else ())]

    def limit(self, fault: KnownFault | None) -> float:
        usual = NUMERIC_SECONDS if fault is not None and fault.needs else SECONDS
        return self.seconds or usual


class ExploreItem(pytest.Item):
    """One hunt. Without a fault it passes when nothing failed, with one when something did."""

    def __init__(self, *, fault: KnownFault | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fault = fault
        self.evidence: dict[str, Any] | None = None
        """What became of the fault, once it was hunted."""

    @classmethod
    def each(cls, parent: pytest.Collector, hunting: Hunting) -> list[ExploreItem]:
        """The items of a run."""
        chosen: Sequence[KnownFault | None] = hunting.faults or (None,)
        names = [f"explore[{fault.name}]" if fault else "explore" for fault in chosen]
        return [
            cls.from_parent(parent, name=name, fault=fault) for name, fault in zip(names, chosen, strict=True)
        ]

    def runtest(self) -> None:
        if self.fault is not None and self.fault.lacks:
            reason = f"{self.fault.name} shows only with {self.fault.lacks}, which is not installed"
            raise pytest.skip.Exception(reason, _use_item_location=True)
        told = self._told()
        if self.fault is None:
            _conclude(told)
        else:
            self._conclude_fault(told)

    def _told(self) -> dict[str, Any]:
        hunting = self.config.stash[HUNT]
        command, limit = hunting.command(self.fault), hunting.limit(self.fault) + _GRACE
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            raise ItemFailure(f"no end after {limit:g} s: {shlex.join(command)}") from None
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            said = done.stderr.strip() or f"exit status {done.returncode}"
            raise ItemFailure(f"{shlex.join(command)}\n{said}") from None
        return answer

    def _conclude_fault(self, told: dict[str, Any]) -> None:
        assert self.fault is not None
        found = told["failed"]
        after = f"{told['examples']} workloads, {told['seconds']:g} s"
        first = found[0]["requirement"] if found else ""
        summary = f"by {first} after {after} ({told['file']})" if found else f"not found in {after}"
        self.user_properties += [
            ("fault", self.fault.name),
            ("fate", str(Fate.KILLED if found else Fate.SURVIVED)),
            ("fault_summary", summary),
        ]
        explored = {"fault": self.fault.name, "examples": told["examples"], "by": told["by"]}
        self.evidence = {"explored": explored}
        if told["alarms"]:
            raise ItemFailure("\n".join(["the healthy engine fails as well:", *told["alarms"]]))
        if not found and self.fault.name in BEYOND:
            raise pytest.skip.Exception(BEYOND[self.fault.name], _use_item_location=True)
        if not found:
            raise ItemFailure(f"fault {self.fault.name}: {summary}\n  symptom   {self.fault.symptom}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, ItemFailure) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, 0, self.name


def _conclude(told: dict[str, Any]) -> None:
    """A target on which workloads failed, or on which none showed anything, is not green."""
    if told["failed"]:
        raise ItemFailure(_failure(told))
    if not told["statuses"].get("pass"):
        reasons = told["errors"] or [f"verdicts: {told['statuses'] or 'none'}"]
        raise ItemFailure("\n".join([f"none of {told['examples']} workloads showed anything", *reasons]))


def _failure(told: dict[str, Any]) -> str:
    lines = [f"workload {told['examples']} failed, after {told['seconds']:g} s"]
    for failed in told["failed"]:
        lines.append(f"  {failed['requirement']:<8}  {failed['judge']}: {failed['witness']}")
    flaky = ["  the same workload did not fail every time"] if told["flaky"] else []
    again = [f"  spec      {told['file']}", f"  again     pytest {told['file']}"] if told["file"] else []
    return "\n".join([*lines, *flaky, *again])

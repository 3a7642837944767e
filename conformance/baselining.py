"""The lines of `--record-baseline`: the six scenarios measured, a fresh process each, and the file written.

Knows collected items and the session. Does not know what a baseline holds (`baseline.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from conformance.baseline import (
    FOLDER,
    REPEATED,
    REPEATS,
    SCENARIOS,
    Baseline,
    BaselineError,
    Phases,
    made,
    phases,
    write,
)
from conformance.collect import SpecItem
from conformance.history import Workload
from conformance.load import Loaded
from conformance.session import BrokenWorkload, Session

_MIB = 1 << 20


def recorded(run: Session, items: Sequence[pytest.Item], name: str, folder: Path = FOLDER) -> Iterator[str]:
    """Lines for the terminal; ends with exit status 1 when a scenario is missing, fails or has no process."""
    cases = {item.loaded.spec.id: item.loaded for item in items if isinstance(item, SpecItem)}
    try:
        _check_complete(cases)
        runs: dict[str, list[Workload]] = {}
        for scenario in SCENARIOS:
            times = REPEATS if scenario in REPEATED else 1
            for number in range(times):
                runs.setdefault(scenario, []).append(run.repeat(cases[scenario], number))
                yield _line(scenario, phases(runs[scenario][-1]))
        baseline = made(runs, run.options.scale)
        path = write(folder, name, baseline)
    except (BaselineError, BrokenWorkload) as error:
        pytest.exit(f"no baseline was recorded: {error}", returncode=1)
    yield from _told(baseline, path)


def _check_complete(cases: Mapping[str, Loaded]) -> None:
    if missing := [name for name in SCENARIOS if name not in cases]:
        raise BaselineError(f"{', '.join(missing)} not collected; run `pytest specs/scenario` or all specs")


def _line(scenario: str, found: Phases) -> str:
    names = ("idle", "peak", "after", "settled")
    shown = "  ".join(f"{name} {getattr(found, name) / _MIB:.0f}" for name in names)
    device = f"  on GPUs {found.device_peak / _MIB:.0f}" if found.device_peak is not None else ""
    return f"{scenario.removeprefix('scenario/')}: MiB  {shown}{device}  ({found.samples} samples)"


def _told(baseline: Baseline, path: Path) -> list[str]:
    spread = (max(found) - min(found) for found in baseline.repeats.values())
    apart = ", ".join(f"{name} {s / _MIB:.1f}" for name, s in zip(baseline.repeats, spread, strict=True))
    return [f"noise: {baseline.noise / _MIB:.1f} MiB (repeats apart: {apart})", f"baseline: {path}"]

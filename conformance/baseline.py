"""Recorded footprints: what the six scenarios cost a server once, to compare a later run with.

Knows the file `golden/baselines/NAME.json`, the phases of a scenario, how noise follows from repeats, and
which machines are the same. Does not know pytest, how a scenario is run (`session.py`), nor what may differ
(`judges/foot.py`). Sizes are bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from conformance.history import Facts, Memory, Record, Span, Workload

FOLDER = Path(__file__).parent.parent / "golden" / "baselines"
"""Recorded footprints; a clone has the folder beside the package."""

SCENARIOS = tuple(
    f"scenario/{name}"
    for name in ("idle", "shared-prefix-burst", "seqshare", "multiturn", "churn", "distinct-burst")
)
REPEATED = SCENARIOS[:2]
"""Run several times: how far idle processes and peaks of one burst differ is the noise."""
REPEATS = 3
SENDING = ("send", "burst", "series", "turns", "start", "repeat", "churn")
_FLOOR = 4 << 20
"""Bytes that differ between any two processes."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
_MACHINE = ("system", "machine", "cores")
"""Facts of a machine that must agree; memory too, in whole GiB."""


class BaselineError(Exception):
    """A baseline that cannot be read, written or recorded; the message says which one and why."""


class Phases(Record):
    """One scenario in a fresh process: at rest before it, during it, right after it, and settled."""

    idle: int
    peak: int
    after: int
    settled: int
    steps: dict[str, int]
    """Peak during each step that sends."""
    samples: int
    device_peak: int | None = None
    """On GPUs, where that is told; apart from all others."""


class Baseline(Record):
    """A recorded run. `noise` is twice what like readings of repeats lay apart: three show not all of it."""

    version: int = 1
    server: str
    server_version: str = ""
    model: str = ""
    scale: str
    machine: dict[str, str]
    noise: int
    repeats: dict[str, list[int]]
    """Idle footprints, and peaks of the burst, one for each fresh process."""
    scenarios: dict[str, Phases]

    def elsewhere(self, facts: Facts, scale: str) -> str:
        """Why a run cannot be compared with it: another machine, server, model or scale; empty if it can."""
        here, there = machine_facts(facts.machine), machine_facts(self.machine)
        pairs = [(name, there[name], here[name]) for name in here]
        pairs += [("server", self.server, facts.name), ("model", self.model, facts.model)]
        differ = [f"{n} {a!r}, not {b!r}" for n, a, b in [*pairs, ("scale", self.scale, scale)] if a != b]
        return "; ".join(differ)


class Comparison(Record):
    """What a run is compared with, as its history keeps it."""

    name: str
    recorded: Baseline
    scale: str
    """Of this run."""
    any_machine: bool = False
    """Whether to compare in spite of another machine, model or scale."""

    def elsewhere(self, facts: Facts) -> str:
        """Why a run on this target cannot be judged by it; empty if it can."""
        return "" if self.any_machine else self.recorded.elsewhere(facts, self.scale)


def machine_facts(machine: Mapping[str, str]) -> dict[str, str]:
    """What of a machine decides whether two footprints can be compared."""
    memory = int(machine.get("memory_mib", "0")) / 1024
    return {**{name: machine.get(name, "") for name in _MACHINE}, "memory": f"{memory:.0f} GiB"}


def phases(workload: Workload) -> Phases:
    """The phases of a scenario's main arm. BaselineError when it did not run well or was not measured."""
    _check_ran(workload)
    sent, settled = _measured(workload)
    start, end = sent[0].start, sent[-1].end
    readings = [m for m in workload.memory if m.arm == "main" and m.at <= settled]
    before = [m.bytes for m in readings if m.at < start]
    during = [m for m in readings if start <= m.at <= end]
    after = [m for m in readings if m.at > end]
    if not before or not during or not after:
        raise BaselineError(f"{workload.spec_id}: the footprint cannot be read: no process is known")
    return Phases(
        idle=before[-1],
        peak=max(m.bytes for m in during),
        after=after[0].bytes,
        settled=after[-1].bytes,
        steps={s.step: _peak(readings, s) for s in sent},
        samples=len(during),
        device_peak=max((m.device for m in during if m.device is not None), default=None),
    )


def _measured(workload: Workload) -> tuple[list[Span], float]:
    """The steps that send before the last wait, and when that was over: what follows is a control."""
    spans = [s for s in workload.spans if s.arm == "main"]
    wait = max((s for s in spans if s.kind == "wait"), key=lambda s: s.start, default=None)
    sent = [s for s in spans if s.kind in SENDING and wait is not None and s.end <= wait.start]
    if wait is None or not sent:
        raise BaselineError(f"{workload.spec_id}: expected a step that sends, and a wait after it")
    return sent, wait.end


def _check_ran(workload: Workload) -> None:
    reason = workload.unobservable or workload.trouble
    failed = next((o for o in workload.outcomes if not o.ok), None)
    if reason is None and failed is not None:
        reason = f"{failed.id} failed: {failed.error or f'HTTP status {failed.status}'}"
    if reason is not None:
        raise BaselineError(f"{workload.spec_id}: {reason}")


def _peak(readings: Sequence[Memory], span: Span) -> int:
    return max((m.bytes for m in readings if span.start <= m.at <= span.end), default=0)


def at_rest(workload: Workload) -> int:
    """The footprint of an idle process: the median of the readings after the last request of the case."""
    sent, settled = _measured(workload)
    return int(median(m.bytes for m in workload.memory if sent[-1].end < m.at <= settled))


def made(runs: Mapping[str, Sequence[Workload]], scale: str) -> Baseline:
    """A baseline from each scenario's runs, each in a fresh process. BaselineError says what is amiss."""
    if missing := [name for name in SCENARIOS if not runs.get(name)]:
        raise BaselineError(f"not run: {', '.join(missing)}")
    measured = {name: [phases(workload) for workload in found] for name, found in runs.items()}
    repeats = {
        "idle": [at_rest(workload) for workload in runs[SCENARIOS[0]]],
        "burst": [found.peak for found in measured[SCENARIOS[1]]],
    }
    facts = runs[SCENARIOS[0]][0].facts["main"]
    return Baseline(
        server=facts.name,
        server_version=facts.version,
        model=facts.model,
        scale=scale,
        machine=machine_facts(facts.machine) | {"memory_mib": facts.machine.get("memory_mib", "0")},
        noise=max(_FLOOR, *(2 * (max(found) - min(found)) for found in repeats.values())),
        repeats=repeats,
        scenarios={name: max(found, key=lambda one: one.peak) for name, found in measured.items()},
    )


def place(root: Path, name: str) -> Path:
    """The file of a baseline. BaselineError for a name that is no file name."""
    if not _NAME.fullmatch(name):
        raise BaselineError(f"{name!r}: expected a name of a-z, 0-9, `.` and `-`")
    return root / f"{name}.json"


def write(root: Path, name: str, baseline: Baseline) -> Path:
    """Writes it, replacing an older one of the name. BaselineError when that is not possible."""
    path = place(root, name)
    text = json.dumps(baseline.model_dump(exclude_none=True), indent=1, sort_keys=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BaselineError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def read(root: Path, name: str) -> Baseline:
    """BaselineError for a name that none was recorded under, with those that were, and for a broken file."""
    path = place(root, name)
    if not path.exists():
        known = ", ".join(sorted(found.stem for found in root.glob("*.json"))) or "none"
        raise BaselineError(f"no baseline {name!r} ({path}); recorded: {known}")
    try:
        return parsed(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise BaselineError(f"{path}: not a baseline: {error}") from None


def parsed(data: Any) -> Baseline:
    """A baseline from plain values. ValueError says what is wrong with them."""
    try:
        found = Baseline.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if found.version != 1:
        raise ValueError(f"format {found.version}; this version reads 1")
    return found

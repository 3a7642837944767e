"""`python -m engine doctor`: what a row depends on here, what the engine will promise, and what it costs.

Knows: which measurements of `probe.py` make a diagnosis, how to time two modes side by side, how to print it.
Does not know: how rows are compared, nor how to change anything. It may lower a grade; the granule that
cached counts are multiples of is configuration and stays.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version

import mlx.core as mx

from engine.fast import fasten
from engine.kvview import noise_view
from engine.model import CanonicalModel, DecodeRow, Runner, load
from engine.probe import (
    BASES,
    SPAN,
    Finding,
    Promise,
    affordable,
    decode_as_prefill,
    fitting,
    key_padding,
    promise,
    routes,
)

ROUNDS = 15
"""Timed rounds of each mode; the first of them is thrown away."""


@dataclass(frozen=True)
class Cost:
    """Median seconds of one piece of work in both modes, taken in turns in one run."""

    what: str
    bits: float
    fast: float

    @property
    def ratio(self) -> float:
        return self.bits / self.fast


@dataclass(frozen=True)
class Mode:
    """One `--determinism`: how its products are made, what its rows depend on, what it may promise."""

    name: str
    product: str
    findings: tuple[Finding, ...]
    promise: Promise
    generated_reusable: bool


@dataclass(frozen=True)
class Report:
    """Everything the doctor found, and the facts of the machine that it holds for."""

    facts: dict[str, str]
    modes: tuple[Mode, ...]
    attention: tuple[Finding, ...]
    costs: tuple[Cost, ...]


def examine(name: str, *, seed: int | None = None, grid: int = 32, blas: str = "builtin") -> Report:
    """Load a model and measure it. `blas` is only reported. Raises ModelError when it cannot be loaded."""
    runner, _ = load(name, seed=seed, grid=grid)
    fast = fasten(runner)
    modes = [_mode("bits", "a product for each row or tile, shared where that keeps bits", runner)]
    if fast is not runner:
        modes.append(_mode("fast", "one product for all rows", fast))
    attention = (key_padding(runner),) if isinstance(runner, CanonicalModel) else ()
    return Report(_facts(name, runner, blas), tuple(modes), attention, tuple(costs(runner, fast)))


def _mode(name: str, product: str, runner: Runner) -> Mode:
    measured = runner.stand_in() if isinstance(runner, CanonicalModel) else runner
    found = routes(measured)
    generated = decode_as_prefill(measured, span=SPAN if name == "fast" else 0)
    # In bits mode what decode wrote is not published where it differs, so a promise does not rest on it.
    promised = promise([*found, generated] if name == "fast" else found, name)
    # An engine shares what decode wrote only where it can afford to measure this each time it starts.
    shared = generated.equal and bool(affordable(measured, name))
    return Mode(name, product, (*found, generated), promised, shared)


def _facts(name: str, runner: Runner, blas: str) -> dict[str, str]:
    return {
        "model": name,
        "dtype": str(runner.shape.dtype).removeprefix("mlx.core."),
        "grid": str(runner.grid),
        "device": mx.default_device().type.name,
        "blas": blas,
        "mlx": version("mlx"),
        "machine": f"{platform.system()} {platform.machine()}",
    }


# ---- costs


def costs(bits: Runner, fast: Runner) -> list[Cost]:
    """A decode step of eight and of one row, and a prefill of a chunk, each behind the longest short past."""
    base = fitting(bits, BASES[:2], SPAN)[-1:] or [0]
    works = {"decode, 8 rows": _decoding(8, base[0]), "decode, 1 row": _decoding(1, base[0])}
    span = min(SPAN, bits.shape.max_positions - base[0])
    works[f"prefill, {span} tokens"] = _prefilling(base[0], span)
    return [side_by_side(f"{what} after {base[0]}", work, bits, fast, ROUNDS) for what, work in works.items()]


def side_by_side(
    what: str, work: Callable[[Runner], Callable[[], object]], bits: Runner, fast: Runner, rounds: int
) -> Cost:
    """Both modes in turns, so that whatever else the machine does slows both."""
    runs = [work(bits), work(fast)]
    taken = [[_timed(run) for run in runs] for _ in range(max(rounds, 2))][1:]
    return Cost(what, *(statistics.median(times) for times in zip(*taken, strict=True)))


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _decoding(batch: int, base: int) -> Callable[[Runner], Callable[[], object]]:
    def work(runner: Runner) -> Callable[[], object]:
        rows = [DecodeRow(noise_view(runner.shape, base, seed=i), 65, base) for i in range(batch)]
        return lambda: runner.decode(rows)

    return work


def _prefilling(base: int, span: int) -> Callable[[Runner], Callable[[], object]]:
    def work(runner: Runner) -> Callable[[], object]:
        view, tokens = noise_view(runner.shape, base), [i % runner.shape.vocab for i in range(base + span)]
        # Logits that nobody uses are not computed.
        return lambda: mx.eval(runner.prefill(view, tokens, base, base + span))

    return work


# ---- the report


def as_json(report: Report) -> str:
    """The report as JSON; a difference that is no finite number becomes null, a cost gains its ratio."""
    body = asdict(report)
    for cost, made in zip(body["costs"], report.costs, strict=True):
        cost["ratio"] = made.ratio
    for finding in [*body["attention"], *(f for mode in body["modes"] for f in mode["findings"])]:
        finding["difference"] = finding["difference"] if math.isfinite(finding["difference"]) else None
    return json.dumps(body, indent=1, allow_nan=False)


def as_text(report: Report) -> str:
    """The report as tables for a person."""
    facts = ", ".join(f"{name} {value}" for name, value in report.facts.items())
    parts = [facts, _findings(report), _promises(report.modes), _costs(report.costs)]
    return "\n\n".join(parts)


def _findings(report: Report) -> str:
    rows: list[tuple[str, ...]] = [("do rows depend on", "made by", "equal?", "largest difference")]
    for mode in report.modes:
        rows += [_finding(f, mode.product) for f in mode.findings]
    return _table([*rows, *(_finding(f, "attention") for f in report.attention)])


def _finding(finding: Finding, made_by: str) -> tuple[str, ...]:
    return finding.what, made_by, "yes" if finding.equal else "NO", f"{finding.difference:.1e}"


def _promises(modes: Sequence[Mode]) -> str:
    rows = [("serve --determinism", "promises", "generated rows", "because")]
    for mode in modes:
        shared = "shared" if mode.generated_reusable else "private"
        rows.append((mode.name, mode.promise.grade, shared, mode.promise.reason))
    return _table(rows)


def _costs(costs: Sequence[Cost]) -> str:
    rows = [("cost", "bits, ms", "fast, ms", "bits / fast")]
    rows += [(c.what, f"{1e3 * c.bits:.2f}", f"{1e3 * c.fast:.2f}", f"{c.ratio:.2f}") for c in costs]
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)

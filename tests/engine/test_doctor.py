"""The doctor's report: what it finds on either BLAS, how it times two modes, how it prints."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from engine import doctor
from engine.digest import DigestModel
from engine.doctor import Cost, Mode, Report, as_json, as_text, examine, side_by_side
from engine.fast import fasten
from engine.model import Runner
from engine.probe import Finding, Promise, decode_as_prefill, routes
from engine.tokenizer import ByteTokenizer
from tests.engine.test_bits import needs_openblas
from tests.engine.test_model import wide

PLAIN = ByteTokenizer().plain_ids()


@cache
def openblas() -> Any:
    """The diagnosis of `tiny` in a process that loads OpenBLAS, as a user gets it."""
    command = [sys.executable, "-m", "engine", "doctor", "--blas", "auto", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(run.stdout)


def equal(mode: Any) -> dict[str, bool]:
    return {finding["what"]: finding["equal"] for finding in mode["findings"]}


@needs_openblas
def test_rows_of_fixed_shapes_depend_on_nothing_with_openblas() -> None:
    bits = openblas()["modes"][0]
    assert {what for what, same in equal(bits).items() if not same} <= {"decode or prefill"}
    assert (bits["name"], bits["promise"]["grade"], bits["generated_reusable"]) == ("bits", "bits", False)


@needs_openblas
def test_plain_products_depend_on_how_a_prefill_is_cut_with_openblas() -> None:
    fast = openblas()["modes"][1]
    assert not equal(fast)["cut of the prefill"]
    assert (fast["name"], fast["promise"]["grade"]) == ("fast", "decided")
    assert "openblas" in openblas()["facts"]["blas"]


def wide_report() -> dict[str, dict[str, bool]]:
    """Both products of a model wide enough that a batch is rounded unlike a row."""
    kinds: dict[str, Runner] = {"bits": wide(), "fast": fasten(wide())}
    return {name: {f.what: f.equal for f in routes(kind, (0,), 64)} for name, kind in kinds.items()}


@needs_openblas
def test_only_plain_products_depend_on_the_batch_size_with_openblas() -> None:
    code = (
        "import json; from engine import blas; blas.apply('auto')\n"
        "from tests.engine.test_doctor import wide_report; print(json.dumps(wide_report()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    seen = json.loads(run.stdout)
    assert all(seen["bits"].values())
    assert not seen["fast"]["batch size"]


def test_on_the_bundled_blas_no_product_depends_on_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ROUNDS", 2)
    report = examine("tiny")
    findings = [f for mode in report.modes for f in mode.findings] + list(report.attention)
    assert len(findings) == 9
    assert all(f.equal and f.difference == 0 for f in findings)
    assert [mode.promise.grade for mode in report.modes] == ["bits", "tokens"]
    assert all(mode.generated_reusable for mode in report.modes)


class Careless(DigestModel):
    """Its decode forgets what came before when it is not alone."""

    def decode(self, rows: Any) -> Any:
        return super().decode(rows if len(rows) == 1 else rows[:1] * len(rows))


def test_a_model_whose_rows_depend_on_company_is_promised_no_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "load", lambda *_, **__: (Careless(PLAIN), ByteTokenizer()))
    report = examine("careless")
    assert report.modes[0].promise.grade == "decided"
    assert "batch" in report.modes[0].promise.reason
    assert decode_as_prefill(Careless(PLAIN)).equal


# ---- costs


def clocked(monkeypatch: pytest.MonkeyPatch, seconds: dict[int, list[float]]) -> Callable[[Runner], Any]:
    """Work that takes, for each runner, the given seconds in turn on a clock of its own."""
    now = 0.0
    left = {key: list(values) for key, values in seconds.items()}

    def work(runner: Runner) -> Callable[[], object]:
        def run() -> None:
            nonlocal now
            now += left[id(runner)].pop(0)

        return run

    monkeypatch.setattr("engine.doctor.time.perf_counter", lambda: now)
    return work


def test_a_cost_is_the_median_of_rounds_without_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    bits, fast = DigestModel(PLAIN), DigestModel(PLAIN)
    work = clocked(monkeypatch, {id(bits): [99.0, 3.0, 4.0, 50.0], id(fast): [99.0, 2.0, 2.0, 2.0]})
    cost = side_by_side("w", work, bits, fast, 4)
    assert (cost.what, cost.bits, cost.fast, cost.ratio) == ("w", 4.0, 2.0, 2.0)


def test_modes_take_turns() -> None:
    order: list[str] = []
    bits, fast = DigestModel(PLAIN), DigestModel(PLAIN)

    def work(runner: Runner) -> Callable[[], object]:
        name = "bits" if runner is bits else "fast"
        return lambda: order.append(name)

    side_by_side("w", work, bits, fast, 3)
    assert order == ["bits", "fast"] * 3


# ---- printing

REPORT = Report(
    facts={"model": "m", "blas": "b"},
    modes=(
        Mode(
            "bits",
            "rows",
            (Finding("batch size", False, math.inf), Finding("cut", True, 0.0)),
            Promise("decided", "because"),
            False,
        ),
    ),
    attention=(Finding("padding", False, 2.5e-7),),
    costs=(Cost("decode", 0.003, 0.002),),
)


def test_the_text_is_tables_in_columns() -> None:
    assert as_text(REPORT).splitlines() == [
        "model m, blas b",
        "",
        "do rows depend on  made by    equal?  largest difference",
        "batch size         rows       NO      inf",
        "cut                rows       yes     0.0e+00",
        "padding            attention  NO      2.5e-07",
        "",
        "serve --determinism  promises  generated rows  because",
        "bits                 decided   private         because",
        "",
        "cost    bits, ms  fast, ms  bits / fast",
        "decode  3.00      2.00      1.50",
    ]


def test_json_has_ratios_and_no_number_that_json_lacks() -> None:
    body = json.loads(as_json(REPORT))
    assert body["costs"] == [{"what": "decode", "bits": 0.003, "fast": 0.002, "ratio": 1.5}]
    assert [f["difference"] for f in body["modes"][0]["findings"]] == [None, 0.0]
    assert body["modes"][0]["promise"] == {"grade": "decided", "reason": "because"}

"""The backend hands out the real classes, and contacts nothing before it is asked to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from conformance.backend import Backend
from conformance.drive import Driver
from conformance.record import Recorder
from conformance.spec import Serve
from conformance.target import Target, TargetOptions


def backend(said: Callable[[str], None] = print) -> Backend:
    return Backend(TargetOptions(how="endpoint", url="http://127.0.0.1:9", timeout=1.0, progress=said))


def test_opening_contacts_nothing_and_using_raises_what_errors_names() -> None:
    made = backend()
    fleet = made.open()
    with (
        pytest.raises(made.errors, match=r"nothing answers at http://127\.0\.0\.1:9"),
        fleet.for_serve(Serve()),
    ):
        raise AssertionError("there is no server on port 9")
    fleet.close()


def test_a_driver_is_made_for_an_arm(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "h.jsonl")
    said: list[str] = []
    driver: Any = backend(said.append).driver(cast(Target, object()), recorder, "cold")
    recorder.close()
    assert isinstance(driver, Driver)
    assert driver._arm == "cold"
    driver._progress("a line")
    assert said == ["a line"]

"""A known deviation is about a spec, an item and a rung that exist, or is refused at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import __main__ as command
from conformance.commands import _specs
from conformance.marks import SpecError
from conformance.named import load
from tests.conformance.fakeback import CASE
from tests.conformance.test_known import FILE

LADDER = CASE.replace("texts:", "for: {n: [1G, 2G]}\ntexts:").replace("unique: 3", "unique: n")
RUNG = FILE.replace("expectation: counted", "rung: n=1G")


@pytest.fixture
def specs(tmp_path: Path) -> list[Path]:
    path = tmp_path / "case.yaml"
    path.write_text(LADDER)
    return [path]


def names(folder: Path, text: str, specs: list[Path]) -> int:
    path = folder / "known.yaml"
    path.write_text(text)
    return len(load(path, specs))


@pytest.mark.parametrize(
    "text",
    [
        FILE,
        RUNG,
        FILE.replace("spec: area/case", "requirement: count/1"),
        RUNG.replace("area/case", '"area/case"'),
    ],
)
def test_names_that_exist(tmp_path: Path, specs: list[Path], text: str) -> None:
    assert names(tmp_path, text, specs) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            FILE.replace("area/case", "area/cose"),
            ":4:11: no spec is called 'area/cose', did you mean 'area/case'?",
        ),
        (
            FILE.replace("expectation: counted", "expectation: count"),
            ":5:18: area/case has no expectation 'count', did you mean 'counted'?",
        ),
        (RUNG.replace("1G", "3G"), ":5:11: area/case has no rung 'n=3G', did you mean 'n=2G'?"),
        (
            FILE.replace("expectation: counted", "requirement: adopt/1"),
            ":5:18: area/case has no requirement 'adopt/1'",
        ),
        (
            RUNG.replace("spec: area/case", "requirement: count/1").replace("n=1G", "m=1G"),
            ":5:11: count/1 has no rung 'm=1G', did you mean 'n=1G'?",
        ),
    ],
)
def test_a_name_that_nothing_has_is_located(tmp_path: Path, specs: list[Path], text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        names(tmp_path, text, specs)
    assert f"known.yaml{told}" in str(caught.value)


def test_a_spec_without_a_ladder_has_no_rung(tmp_path: Path, specs: list[Path]) -> None:
    specs[0].write_text(CASE)
    with pytest.raises(SpecError, match="has no rung 'n=1G'") as caught:
        names(tmp_path, RUNG, specs)
    assert "legal here: none, so leave it out" in str(caught.value)


def test_what_a_broken_spec_has_nobody_knows(tmp_path: Path, specs: list[Path]) -> None:
    specs[0].write_text(LADDER.replace("title:", "titel:"))
    assert names(tmp_path, RUNG.replace("1G", "3G"), specs) == 1


def test_validate_knows_the_shipped_specs_and_those_that_it_is_given(
    tmp_path: Path, specs: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").mkdir()
    known = tmp_path / "known.yaml"
    known.write_text(RUNG)
    monkeypatch.setattr(_specs, "SPECS", tmp_path / "none")
    assert command.main(["validate", str(known)]) == 1
    assert "known.yaml:4:11: no spec is called 'area/case'" in capsys.readouterr().err
    assert command.main(["validate", str(known), str(specs[0])]) == 0
    monkeypatch.setattr(_specs, "SPECS", tmp_path)
    assert command.main(["validate", str(known)]) == 0

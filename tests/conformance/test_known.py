"""Known deviations: what a file may say, which item and release an entry is about, and when it is over."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from conformance.history import Facts
from conformance.known import FOLDER, Known, find, in_range, is_expectations, load, load_all
from conformance.load import load as load_spec
from conformance.load import spec_files
from conformance.marks import SpecError
from conformance.spec import Spec
from tests.conformance.builders import facts
from tests.conformance.fakeback import CASE

FILE = """\
expectations: 1
target: engine
known:
  - spec: area/case
    expectation: counted
    reason: counts one too many
    link: https://example.org/1
    until: 2027-03-01
    versions: ">=1.2,<2"
"""
TODAY = date(2027, 3, 1)
HERE = facts(version="1.4")


def entries(folder: Path, text: str = FILE) -> list[Known]:
    path = folder / "engine.yaml"
    path.write_text(text)
    return load(path)


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "case.yaml").write_text(CASE)
    return load_spec(tmp_path / "case" / "case.yaml").spec


def found(
    known_ones: list[Known], spec: Spec, on: Facts = HERE, rung: str = "", today: date = TODAY
) -> tuple[Known | None, str]:
    return find(known_ones, on, spec, rung, spec.expect[0], today)


def test_an_entry_says_where_it_stands_and_why(tmp_path: Path, spec: Spec) -> None:
    [entry] = entries(tmp_path)
    assert found([entry], spec) == (entry, "")
    assert entry.says == "known: counts one too many (https://example.org/1)"
    assert entry.place.endswith("engine.yaml:4")
    assert str(entry.verdict) == "fail"


@pytest.mark.parametrize(
    "change",
    [
        ("target: engine", "target: vllm"),
        ("spec: area/case", "spec: area/other"),
        ("expectation: counted", "expectation: another"),
        ("expectation: counted", "requirement: adopt/1"),
        ("expectation: counted", "rung: n=1G"),
        (">=1.2,<2", ">=1.5"),
    ],
)
def test_an_entry_about_something_else_does_not_hold(
    tmp_path: Path, spec: Spec, change: tuple[str, str]
) -> None:
    assert found(entries(tmp_path, FILE.replace(*change)), spec) == (None, "")


@pytest.mark.parametrize(
    "change", [("spec: area/case", "requirement: count/1"), ("expectation: counted", "rung: n=1G")]
)
def test_an_entry_may_name_a_requirement_or_a_rung(
    tmp_path: Path, spec: Spec, change: tuple[str, str]
) -> None:
    assert found(entries(tmp_path, FILE.replace(*change)), spec, rung="n=1G")[0] is not None


def test_an_entry_that_expired_is_told_and_holds_no_more(tmp_path: Path, spec: Spec) -> None:
    holding, told = found(entries(tmp_path), spec, today=date(2027, 3, 2))
    assert holding is None
    assert "engine.yaml:4: expired on 2027-03-01, so it is ignored" in told


def test_a_renewed_entry_goes_before_an_expired_one(tmp_path: Path, spec: Spec) -> None:
    renewed = FILE.partition("known:\n")[2].replace("2027", "2028")
    holding, told = found(entries(tmp_path, FILE + renewed), spec, today=date(2027, 3, 2))
    assert (holding is not None and holding.entry.until, told) == (date(2028, 3, 1), "")


@pytest.mark.parametrize(
    ("version", "versions", "inside"),
    [
        ("0.33.0", ">=0.32,<0.34", True),
        ("0.33.0+cu128", "==0.33.0", True),
        ("0.33.1.dev12", ">=0.33,<0.34", True),
        ("v0.5.1", ">=0.5", True),
        ("b6123", ">=6100", True),
        ("1.2-odd~words", "==1.2", True),
        ("0.34.0", ">=0.32,<0.34", False),
        ("", ">=0.1", False),
        ("main", ">=0.1", False),
        ("", "", True),
    ],
)
def test_versions(version: str, versions: str, inside: bool) -> None:
    assert in_range(version, versions) is inside


def test_a_day_may_stand_in_quotes(tmp_path: Path) -> None:
    assert entries(tmp_path, FILE.replace("2027-03-01", '"2027-03-01"'))[0].entry.until == TODAY


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("reason: counts", "raeson: counts", ":6:5: unknown key 'raeson', did you mean 'reason'?"),
        ("known:", "knwon:", ":3:1: unknown key 'knwon', did you mean 'known'?"),
        ("    link: https://example.org/1\n", "", ":4:5: the key 'link' is missing"),
        ("link: https", "link: gopher", ":7:11: should be a link, as in https://example.org/1, not 'gopher"),
        ("2027-03-01", "2027-13-01", ":8:12: '2027-13-01' is no value: month must be in 1..12"),
        ("2027-03-01", "2027-03-01 10:00:00", ":8:12: a day is needed, as in 2027-03-01, not '2027-03-01T10"),
        ("target: engine", "target: vlm", ":2:9: no dialect is called 'vlm', did you mean 'vllm'?"),
        ("target: engine", "target: x", ":2:9: no dialect is called 'x'; `python -m conformance dialects`"),
        ("2027-03-01", "soon", ":8:12: a day is needed, as in 2027-03-01, not 'soon'"),
        (">=1.2,<2", "1.2", ":9:15: a range of versions is needed, as in >=0.32,<0.34, not '1.2'"),
        ("    expectation: counted", "    verdict: pass", ":5:14: "),
        ("    expectation: counted", "    requirement: nope/1", ":5:18: there is no requirement 'nope/1'"),
        (
            "spec: area/case\n    expectation",
            "expectation",
            ":4:5: an entry names a spec, a requirement, or both",
        ),
        ("expectations: 1", "expectations: 2", ":1:15: "),
        (FILE, "- 1\n", ":1:1: a file of known deviations is a mapping that starts with `expectations: 1`"),
    ],
)
def test_mistakes_are_located(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        entries(tmp_path, FILE.replace(old, new))
    assert f"engine.yaml{message}" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert not is_expectations(tmp_path / "gone.yaml")
    with pytest.raises(SpecError, match=r"gone.yaml:1:1: cannot be read"):
        load(tmp_path / "gone.yaml")


def test_a_folder_gives_all_entries(tmp_path: Path) -> None:
    entries(tmp_path)
    (tmp_path / "b.yaml").write_text(FILE.replace("target: engine", "target: vllm"))
    assert [one.target for one in load_all(tmp_path)] == ["vllm", "engine"]


def test_shipped_entries_are_about_specs_and_expectations_that_exist() -> None:
    specs = [load_spec(path).spec for path in spec_files(FOLDER.parent / "specs")]
    items = {(spec.id, expect.id) for spec in specs for expect in spec.expect}
    named = [(one.entry.spec, one.entry.expectation) for one in load_all()]
    assert all(spec is None or any(spec == id_ and e in (None, x) for id_, x in items) for spec, e in named)


def test_a_spec_is_no_file_of_deviations(tmp_path: Path) -> None:
    entries(tmp_path)
    (tmp_path / "case.yaml").write_text(CASE)
    assert is_expectations(tmp_path / "engine.yaml")
    assert not is_expectations(tmp_path / "case.yaml")

"""Which files are cases, whatever their names and first bytes are; and claims to kill what is no fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import backend, faults
from conformance.faults import KnownFault
from tests.conformance.fakeback import CASE, Back
from tests.conformance.test_collect import PLAIN, ids, module_ids, write


@pytest.fixture(autouse=True)
def back(monkeypatch: pytest.MonkeyPatch) -> Back:
    """No server is ever started by these tests."""
    made = Back()
    monkeypatch.setattr(backend, "Backend", lambda options: made)
    return made


def test_a_byte_order_mark_hides_no_case(pytester: pytest.Pytester) -> None:
    write(pytester).write_text(CASE, encoding="utf-8-sig")
    assert ids(pytester, "specs") == ["specs/area/case.yaml::counted"]


def test_a_folder_may_be_called_like_a_file(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(pytester, name="dir.yaml/case.yaml")
    (pytester.path / "specs" / "spec.schema.json").write_text("{}")
    for asked in ("specs", "specs/dir.yaml"):
        assert ids(pytester, asked) == ["specs/dir.yaml/case.yaml::counted"]
    assert module_ids(pytester, monkeypatch) == ["specs/dir.yaml/case.yaml::counted"]


KILLS = CASE.replace("texts:", "kills: [known, nope]\ntexts:")


def know(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"bug_class": "", "symptom": "", "breaks": ("count/1",), "needs": "", "lacks": ""}
    known = {name: KnownFault.model_validate({"name": name, **told}) for name in ("known", "other")}
    monkeypatch.setattr(faults, "known", lambda: known)


def test_a_claim_to_kill_what_is_no_fault_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch)
    write(pytester, KILLS)
    result = pytester.runpytest_inprocess(*PLAIN, "specs", "--faults", "all")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["specs/area/case.yaml:5:16: there is no fault 'nope'", "legal here: known, other"]
    )


def test_known_faults_may_be_claimed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    know(monkeypatch)
    write(pytester, KILLS.replace("nope", "other"))
    assert [item.rpartition("::")[2] for item in ids(pytester, "specs", "--faults", "all")] == [
        "counted",
        "fault[known]",
        "fault[other]",
    ]


def test_an_ordinary_run_does_not_ask_the_engine_for_its_faults(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked() -> dict[str, KnownFault]:
        raise AssertionError("the engine was started")

    monkeypatch.setattr(faults, "known", asked)
    path: Path = write(pytester, KILLS)
    assert ids(pytester, str(path)) == ["specs/area/case.yaml::counted"]

"""Which files are cases, wherever they lie, and under which ids; claims to kill what is no fault."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from conformance import backend, collect, faults, plugin
from conformance.catalogue import KnownFault
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


def test_a_wrong_claim_and_a_wrong_expectation_are_told_together(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch)
    write(pytester, KILLS.replace("of: ", "off: "))
    result = pytester.runpytest_inprocess(*PLAIN, "specs", "--faults", "all")
    result.stdout.fnmatch_lines(["*there is no fault 'nope'*", "*unknown key 'off'*"])


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


OUTSIDE = ("--rootdir=.", "--noconftest", "--specs=../my own")


@pytest.fixture
def outside(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, back: Back) -> pytest.RunResult:
    """A run of shipped specs in a root folder and of own ones elsewhere, of which two have one name."""
    back.outcomes = lambda request: {"cached": 99}
    for name in ("root/specs/case.yaml", "my own/a/case.yaml", "my own/b/case.yaml"):
        path = pytester.path / name
        path.parent.mkdir(parents=True)
        path.write_text(CASE.replace("area/case", f"area/{path.parent.name}"))
    monkeypatch.setattr(collect, "SPECS", pytester.path / "root" / "specs")
    monkeypatch.chdir(pytester.path / "root")
    module = str(Path(plugin.__file__).parent / "test_specs.py")
    options = (
        f"--rootdir={pytester.path / 'root'}",
        "--noconftest",
        "--specs=../my own",
        "--history=h.jsonl",
    )
    return pytester.runpytest_inprocess(*PLAIN, module, *options)


def test_files_of_one_name_outside_of_the_root_are_all_run(outside: pytest.RunResult) -> None:
    outside.assert_outcomes(failed=3)


def again(pytester: pytest.Pytester, words: list[str]) -> None:
    result = pytester.runpytest_inprocess(*PLAIN, *words)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*judge again without a server: --replay=*h.jsonl"])


def test_every_line_that_judges_again_can_be_pasted(
    pytester: pytest.Pytester, outside: pytest.RunResult
) -> None:
    lines = [line for line in outside.outlines if line.startswith("pytest ")]
    assert len(lines) == 3
    for line in lines:
        again(pytester, shlex.split(line)[1:])


def test_every_id_in_the_summary_can_be_pasted(pytester: pytest.Pytester, outside: pytest.RunResult) -> None:
    ids = [line[7:].partition(" - ")[0] for line in outside.outlines if line.startswith("FAILED ")]
    assert ids == [
        "specs/case.yaml::counted",
        "../my own/a/case.yaml::counted",
        "../my own/b/case.yaml::counted",
    ]
    for id_ in ids:
        again(pytester, [id_, "--replay=h.jsonl"])


def test_a_file_that_is_asked_for_twice_is_run_once(
    pytester: pytest.Pytester, outside: pytest.RunResult
) -> None:
    module = str(Path(plugin.__file__).parent / "test_specs.py")
    result = pytester.runpytest_inprocess(*PLAIN, module, "../my own/a", *OUTSIDE, "--replay=h.jsonl")
    result.assert_outcomes(failed=3)

"""YAML cases become pytest items that say where they stand; a broken file is one failing item."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance import backend, collect
from conformance.plan import Unobservable
from tests.conformance.fakeback import CASE, Back

PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")


@pytest.fixture(autouse=True)
def back(monkeypatch: pytest.MonkeyPatch) -> Back:
    """No server is ever started by these tests."""
    made = Back()
    monkeypatch.setattr(backend, "Backend", lambda options: made)
    return made


def write(pytester: pytest.Pytester, text: str = CASE, name: str = "area/case.yaml") -> Path:
    path = pytester.path / "specs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def ids(pytester: pytest.Pytester, *args: str) -> list[str]:
    result = pytester.runpytest_inprocess(*PLAIN, "--collect-only", "-q", *args)
    return [line for line in result.outlines if "::" in line]


LADDER = CASE.replace("steps:", "for: {n: [1G-1, 1G]}\nsteps:").replace("unique: 3", "unique: n")


def test_an_item_is_spec_rung_and_expectation(pytester: pytest.Pytester) -> None:
    write(pytester)
    write(pytester, LADDER.replace("area/case", "area/ladder"), "area/ladder.yaml")
    assert ids(pytester, "specs/area") == [
        "specs/area/case.yaml::counted",
        "specs/area/ladder.yaml::counted[n=1G-1]",
        "specs/area/ladder.yaml::counted[n=1G]",
    ]


OTHER = CASE.replace("area/case", "area/other").replace("[count/1]", "[key/6]")
OTHER = OTHER.replace("counted: {of: eight}", "no_false_hit: {of: eight, positive: eight}")


@pytest.mark.parametrize(
    "args",
    [
        ["specs/area/case.yaml"],
        ["specs/area/case.yaml::counted"],
        ["specs/area/case.yaml", "specs/area/case.yaml::counted"],
        ["specs", "-k", "count/1"],
        ["specs", "-k", "area/case"],
        ["specs", "-m", "quick"],
    ],
)
def test_a_case_is_selected_by_path_node_id_requirement_spec_or_mark(
    pytester: pytest.Pytester, args: list[str]
) -> None:
    write(pytester, CASE.replace("texts:", "quick: true\ntexts:"))
    write(pytester, OTHER, "area/other.yaml")
    assert ids(pytester, *args) == ["specs/area/case.yaml::counted"]
    assert len(ids(pytester, "specs")) == 2


def test_collecting_contacts_nothing(pytester: pytest.Pytester, back: Back) -> None:
    write(pytester)
    assert ids(pytester, "specs", "--endpoint", "http://127.0.0.1:9")
    assert back.events == []


def test_yaml_that_is_no_spec_is_left_alone(pytester: pytest.Pytester) -> None:
    write(pytester, "openapi: 3.1.0\n", "api.yaml")
    assert ids(pytester, "specs") == []


@pytest.mark.parametrize("how", ["named", "in a folder with the schema"])
def test_yaml_that_should_be_a_spec_and_is_none_fails(pytester: pytest.Pytester, how: str) -> None:
    path = write(pytester, "openapi: 3.1.0\n", "api.yaml")
    if how != "named":
        (path.parent / "spec.schema.json").write_text("{}")
    assert ids(pytester, str(path) if how == "named" else "specs") == ["specs/api.yaml::schema"]


def test_a_broken_file_is_one_failing_item_and_the_rest_runs(pytester: pytest.Pytester) -> None:
    write(pytester)
    write(pytester, CASE.replace("requests: 8", "requets: 8"), "area/broken.yaml")
    result = pytester.runpytest_inprocess(*PLAIN, "specs")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "specs/area/broken.yaml:9:5: unknown key 'requets', did you mean 'requests'?",
            "*    requets: 8",
            "*    ^",
            "legal here: *requests*",
            "FAILED specs/area/broken.yaml::schema*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_second_file_with_the_same_id_fails(pytester: pytest.Pytester) -> None:
    write(pytester)
    write(pytester, name="area/twin.yaml")
    assert ids(pytester, "specs") == ["specs/area/case.yaml::counted", "specs/area/twin.yaml::schema"]


def module_ids(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(collect, "SPECS", pytester.path / "specs")
    module = str(collect.PACKAGE / "test_specs.py")
    return ids(pytester, module, f"--rootdir={pytester.path}", f"--confcutdir={pytester.path}")


def test_the_test_module_stands_for_the_shipped_specs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(pytester)
    assert module_ids(pytester, monkeypatch) == ["specs/area/case.yaml::counted"]


def test_no_shipped_spec_at_all_fails(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [line.rpartition("::")[2] for line in module_ids(pytester, monkeypatch)] == ["schema"]


def test_without_the_plugin_the_test_module_fails(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(
        *PLAIN,
        "-p",
        "no:prefix-cache-conformance",
        "--noconftest",
        collect.PACKAGE / "test_specs.py",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the conformance plugin is not loaded*"])


def test_an_item_points_at_its_expectation(pytester: pytest.Pytester, back: Back) -> None:
    back.serve_error = Unobservable("no such thing")
    write(pytester)
    result = pytester.runpytest_inprocess(*PLAIN, "-rs", "specs")
    result.stdout.fnmatch_lines(
        ["SKIPPED [[]1[]] specs/area/case.yaml:15: count/1 unobservable: no such thing"]
    )


def test_a_failure_shows_law_evidence_and_lines_to_paste(pytester: pytest.Pytester, back: Back) -> None:
    back.outcomes = lambda request: {"cached": 34 if request.index == 2 else 16}
    write(pytester)
    result = pytester.runpytest_inprocess(*PLAIN, "specs", "--history", "h.jsonl")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "count/1 MUST: *",
            "  case      area/case: A case",
            "  verdict   fail",
            "  expected  0 <= cached*",
            "  observed  eight[[]0[]] *",
            "  witness   eight[[]2[]] reports 34*",
            "curl * http://127.0.0.1:8000/v1/completions *",
            "pytest specs/area/case.yaml::counted --replay=h.jsonl",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_an_item_carries_its_verdict_to_junit(pytester: pytest.Pytester) -> None:
    write(pytester)
    pytester.runpytest_inprocess(*PLAIN, "specs", "--junitxml=j.xml", "--history=h.jsonl")
    found = {e.get("name"): e.get("value") for e in ElementTree.parse("j.xml").iter("property")}
    assert {key: found[key] for key in ("spec", "requirement", "level", "verdict", "history")} == {
        "spec": "area/case",
        "requirement": "count/1",
        "level": "MUST",
        "verdict": "pass",
        "history": "h.jsonl",
    }
    assert "fake" in (found["target"] or "")


def test_a_golden_item_compares_through_syrupy(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.session.GOLDEN", pytester.path / "golden")
    write(pytester, CASE.replace("counted:", "golden:").replace("count/1", "out/1"))
    for args, outcome in [
        ([], {"skipped": 1}),
        (["--snapshot-update"], {"passed": 1}),
        ([], {"passed": 1}),
    ]:
        pytester.runpytest_inprocess(*PLAIN, "specs", *args).assert_outcomes(**outcome)
    [path] = (pytester.path / "golden").rglob("*.json")
    assert path.relative_to(pytester.path).as_posix() == "golden/tiny.granule-8/area/case.full.json"
    path.write_text(path.read_text().replace('"text": ""', '"text": "x"'))
    pytester.runpytest_inprocess(*PLAIN, "specs").assert_outcomes(failed=1)


def test_an_unexpected_exception_keeps_its_traceback(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*args: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(collect, "conclude", crash)
    write(pytester)
    pytester.runpytest_inprocess(*PLAIN, "specs").stdout.fnmatch_lines(["*RuntimeError: a defect"])

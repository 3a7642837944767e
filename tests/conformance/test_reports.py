"""What a run leaves behind: JUnit properties, one JSON document, one page; for one target and for several."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from conformance import backend, collect, plugin
from conformance.judges import JUDGES, Judge
from conformance.spec import Strict
from conformance.values import CHECKS
from conformance.verdict import Status, Verdict
from tests.conformance.fakeback import CASE, Back

PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
REPORTS = ("--report-json=r.json", "--report-html=r.html", "--junitxml=r.xml")
EVIL = '<script>alert(1)</script> & "quotes"'
Run = Callable[..., pytest.RunResult]


@pytest.fixture(autouse=True)
def back(monkeypatch: pytest.MonkeyPatch) -> Back:
    """No server is ever started by these tests."""
    made = Back()
    monkeypatch.setattr(backend, "Backend", lambda options: made)
    return made


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    (pytester.path / "case.yaml").write_text(CASE)

    def result(*args: str, on: str = "case.yaml") -> pytest.RunResult:
        return pytester.runpytest_inprocess(*PLAIN, *([on] if on else []), *args)

    return result


def document(pytester: pytest.Pytester) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))
    return found


def junit(pytester: pytest.Pytester) -> list[dict[str, str]]:
    """The properties of each test case."""
    cases = ET.parse(pytester.path / "r.xml").getroot().iter("testcase")
    return [{p.attrib["name"]: p.attrib["value"] for p in case.iter("property")} for case in cases]


def page(pytester: pytest.Pytester) -> str:
    return (pytester.path / "r.html").read_text(encoding="utf-8")


def ruling(status: Status, monkeypatch: pytest.MonkeyPatch, reason: str = "why") -> None:
    """Let the judge of the case rule so."""

    class Args(Strict):
        of: str

    def rule(args: Args, workload: object, asked: str) -> Verdict:
        return Verdict(status, asked, "all of them", ("line one",), "a witness", reason, notes=("a note",))

    judge = Judge("counted", "count/1", Args, lambda args: frozenset(), rule, "")
    monkeypatch.setitem(JUDGES, "counted", judge)


@pytest.mark.parametrize("status", list(Status))
def test_every_verdict_keeps_its_word_everywhere(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    ruling(status, monkeypatch)
    result = run(*REPORTS)
    told = document(pytester)
    assert [item["verdict"] for item in told["items"]] == [status]
    assert told["requirements"][0]["verdicts"][""]["verdict"] == status
    assert junit(pytester)[0]["verdict"] == status
    assert f'<b class="v {status}">{status}</b>' in page(pytester)
    assert any(re.match(rf"count/1 +MUST +{status} ", line) for line in result.outlines)
    assert (told["items"][0]["outcome"] == "passed") is (status is Status.PASS)


def test_json_holds_target_evidence_and_place(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruling(Status.FAIL, monkeypatch)
    run(*REPORTS, "--history=h.jsonl")
    told = document(pytester)
    assert (told["format"], told["green"], told["not_judged"]) == (1, False, [])
    assert told["targets"][0]["facts"]["name"] == "fake"
    assert told["targets"][0]["histories"] == ["h.jsonl"]
    item = told["items"][0]
    assert {
        key: item[key] for key in ("spec", "requirement", "level", "rung", "file", "line", "outcome")
    } == {
        "spec": "area/case",
        "requirement": "count/1",
        "level": "MUST",
        "rung": "",
        "file": "case.yaml",
        "line": 15,
        "outcome": "failed",
    }
    assert (item["expected"], item["observed"], item["witness"]) == ("all of them", ["line one"], "a witness")
    assert (item["reason"], item["notes"]) == ("why", ["a note"])
    assert item["again"] == "pytest case.yaml::counted --replay=h.jsonl"


def test_what_was_asked_for_and_not_judged_stands_in_the_reports(run: Run, pytester: pytest.Pytester) -> None:
    run(*REPORTS, "--min-judged=out/1")
    told = document(pytester)
    assert (told["green"], told["not_judged"]) == (False, ["out/1"])
    assert "the run is not green" in page(pytester)


def test_a_file_that_is_no_spec_stands_in_the_reports(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "bad.yaml").write_text(CASE.replace("title:", "titel:"))
    run(*REPORTS, "bad.yaml")
    [broken] = document(pytester)["broken"]
    assert broken["node"] == "bad.yaml::schema"
    assert "bad.yaml:3:1: unknown key" in broken["text"]
    assert "bad.yaml:3:1: unknown key" in page(pytester)
    assert document(pytester)["green"] is False


class Page(HTMLParser):
    """Counts what is opened and closed, and what the page would fetch."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "p" and self.open[-1] != "p":
            raise AssertionError(f"a paragraph is closed inside {self.open[-1]}")
        assert self.open.pop() == tag


def test_the_page_is_whole_fetches_nothing_and_runs_nothing(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, back: Back
) -> None:
    ruling(Status.FAIL, monkeypatch, reason=EVIL)
    back.facts = back.facts.model_copy(update={"model": EVIL})
    run(*REPORTS)
    parsed = Page()
    parsed.feed(page(pytester))
    assert (parsed.open, parsed.fetched) == ([], [])
    assert "script" not in parsed.tags
    assert {"svg", "rect", "details", "table"} <= parsed.tags
    assert "&lt;script&gt;alert(1)" in page(pytester)


def test_the_page_draws_each_burst_with_what_was_cached(run: Run, pytester: pytest.Pytester) -> None:
    run(*REPORTS)
    drawn = page(pytester)
    assert "area/case · eight" in drawn
    assert "area/case · eight (arm cold)" in drawn
    assert drawn.count("cached 16 of 35") == 16


def test_a_run_that_reached_nothing_still_has_reports(
    run: Run, pytester: pytest.Pytester, back: Back
) -> None:
    back.open_error = OSError("no")
    back.errors = (OSError,)
    run(*REPORTS)
    told = document(pytester)
    assert (told["items"][0]["verdict"], told["targets"][0]["facts"]) == ("error", None)
    assert "no target was reached" in page(pytester)


def test_a_report_that_cannot_be_written_is_told_and_not_green(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> int:
        raise OSError(28, "No space left on device")

    run("--history=h.jsonl")
    monkeypatch.setattr(Path, "write_text", refuse)
    result = pytester.runpytest_inprocess(*PLAIN, "case.yaml", "--replay=h.jsonl", "--report-json=r.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["report r.json: cannot be written: No space left on device"])


WRITTEN = ("history", "report-json", "report-html", "report-kills")
FAULTS = ("--faults=leak_ref_on_abort",)
"""What the kills' report goes with."""


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (".", "a directory; expected a file to write"),
        ("case.yaml/r", "case.yaml is no directory"),
        ("none/r", "there is no directory none; make it first"),
        ("n" * 300, "cannot be written: File name too long"),
    ],
)
def test_where_nothing_can_be_written_is_told_before_anything_runs(
    run: Run, pytester: pytest.Pytester, back: Back, name: str, given: str, told: str
) -> None:
    result = run(f"--{name}={given}", *(FAULTS if name == "report-kills" else ()))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--{name} {given}: {told}" in result.stderr.str()
    assert (back.events, (pytester.path / "none").exists()) == ([], False)


def test_what_is_looked_at_stays_as_it_was(pytester: pytest.Pytester) -> None:
    (pytester.path / "old").write_text("before")
    os.mkfifo(pytester.path / "pipe")  # nobody reads it: to open it would wait for ever
    for name in ("old", "new", "pipe"):
        CHECKS["report-json"](str(pytester.path / name))
    assert (pytester.path / "old").read_text() == "before"
    assert not (pytester.path / "new").exists()


def test_collecting_alone_reports_nothing(run: Run, pytester: pytest.Pytester) -> None:
    run("--collect-only", *REPORTS)
    assert not (pytester.path / "r.json").exists()


def test_reports_say_the_same_with_two_workers(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "other.yaml").write_text(CASE.replace("area/case", "area/other"))
    run("other.yaml", "--history=h.jsonl")
    text = (pytester.path / "h.jsonl").read_text()
    (pytester.path / "h.jsonl").write_text(text.replace('"cached":16', '"cached":99', 1))
    found = []
    for workers in ("-n0", "-n2"):
        args = (workers, "case.yaml", "other.yaml", "--replay=h.jsonl", *REPORTS)
        pytester.runpytest_subprocess(*PLAIN, *args).assert_outcomes(passed=1, failed=1)
        items = [{**item, "seconds": 0} for item in document(pytester)["items"]]
        found.append((sorted(items, key=str), sorted(junit(pytester), key=str)))
    assert found[0] == found[1]
    assert [item["verdict"] for item in found[1][0]] == ["fail", "pass"]


def test_histories_of_two_targets_make_one_matrix(run: Run, pytester: pytest.Pytester, back: Back) -> None:
    run("--history=one.jsonl")
    back.facts = back.facts.model_copy(update={"name": "Other", "version": "2"})
    back.outcomes = lambda request: {"cached": 99}
    run("--history=two.jsonl")
    result = run("--replay=one.jsonl", "--replay=two.jsonl", *REPORTS)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "conformance: replay of one.jsonl, two.jsonl *",
            "pytest case.yaml::counted --replay=two.jsonl",
            "requirement  level  fake  other-2",
            "count/1      MUST   pass  fail",
            "fake: 1 of 1 claimed MUSTs judged, 100 %, 1 pass",
            "other-2: 1 of 1 claimed MUSTs judged, 100 %, 0 pass, 1 fail",
        ]
    )
    assert [(i["on"], i["verdict"]) for i in document(pytester)["items"]] == [
        ("fake", "pass"),
        ("other-2", "fail"),
    ]
    assert [target["shares"]["MUST"]["passed"] for target in document(pytester)["targets"]] == [1, 0]
    assert [case["on"] for case in junit(pytester)] == ["fake", "other-2"]
    assert run("--replay=one.jsonl", "--replay=two.jsonl", "-k", "fake").ret == pytest.ExitCode.OK


def test_each_target_must_be_judged(run: Run, back: Back) -> None:
    run("--history=one.jsonl")
    back.facts = back.facts.model_copy(update={"name": "Other"})
    run("--history=two.jsonl")
    result = run("--replay=one.jsonl", "--replay=two.jsonl", "--min-judged=out/1")
    result.stdout.fnmatch_lines(["not judged, so this run is not green: out/1 on fake, out/1 on other"])


def test_files_of_two_workers_are_one_target(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "other.yaml").write_text(CASE.replace("area/case", "area/other"))
    run("--history=gw0.jsonl")
    run("--history=gw1.jsonl", on="other.yaml")
    result = run("other.yaml", "--replay=gw0.jsonl", "--replay=gw1.jsonl")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["count/1 *MUST *pass *2 pass*"])


def test_several_histories_may_come_from_the_environment(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("--history=one.jsonl")
    monkeypatch.setenv("CONFORMANCE_REPLAY", "one.jsonl:one.jsonl")
    run().stdout.fnmatch_lines(["conformance: replay of one.jsonl · *"])


def test_a_cut_history_says_so_before_anything_is_judged(run: Run, pytester: pytest.Pytester) -> None:
    run("--history=h.jsonl")
    path = pytester.path / "h.jsonl"
    whole, said = path.read_bytes(), "conformance: h.jsonl: ends inside area/case; judged as far as it goes"
    # Behind the burst that is judged, then inside of it.
    for length, outcome in ((len(whole) - 500, "passed"), (3000, "failed")):
        path.write_bytes(whole[:length])
        result = run("--replay=h.jsonl")
        result.assert_outcomes(**{outcome: 1})
        result.stdout.fnmatch_lines([said])


KNOWN = """\
expectations: 1
target: engine
known:
  - spec: area/case
    reason: counts too many
    link: https://example.org/1
    until: 2999-01-01
"""


@pytest.fixture
def wrong(back: Back) -> None:
    """A server that reports more than it may."""
    back.outcomes = lambda request: {"cached": 99}


@pytest.mark.usefixtures("wrong")
def test_a_known_deviation_is_an_expected_failure_and_still_shown(
    run: Run, pytester: pytest.Pytester
) -> None:
    (pytester.path / "k.yaml").write_text(KNOWN)
    result = run("--expectations=k.yaml", "-rx", *REPORTS)
    result.assert_outcomes(xfailed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "count/1 *MUST *fail *1 fail *known: counts too many (https://example.org/1)",
            "XFAIL case.yaml::counted - known: counts too many (https://example.org/1) [[]count/1 fail: *",
        ]
    )
    item = document(pytester)["items"][0]
    assert (item["verdict"], item["outcome"]) == ("fail", "xfailed")
    assert item["known"] == junit(pytester)[0]["known"] == "known: counts too many (https://example.org/1)"
    assert "known: counts too many" in page(pytester)


def test_a_known_deviation_that_passes_is_news(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "k.yaml").write_text(KNOWN)
    result = run("--expectations=k.yaml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["count/1 passes, and k.yaml:4 expects fail: good news, delete the entry"])


@pytest.mark.usefixtures("wrong")
def test_an_expired_deviation_is_no_excuse_and_told(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "k.yaml").write_text(KNOWN.replace("2999", "2001"))
    result = run("--expectations=k.yaml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["k.yaml:4: expired on 2001-01-01, so it is ignored; *"])


def test_a_known_failure_that_becomes_something_else_is_judged_as_that(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "k.yaml").write_text(KNOWN)
    ruling(Status.VACUOUS, monkeypatch)
    run("--expectations=k.yaml").assert_outcomes(failed=1)
    ruling(Status.UNOBSERVABLE, monkeypatch)
    run("--expectations=k.yaml").assert_outcomes(skipped=1)


@pytest.mark.usefixtures("wrong")
def test_the_shipped_file_of_the_dialect_is_the_default(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "expectations").mkdir()
    (pytester.path / "expectations" / "engine.yaml").write_text(KNOWN)
    monkeypatch.setattr("conformance.known.FOLDER", pytester.path / "expectations")
    run().assert_outcomes(xfailed=1)


def test_a_broken_file_of_deviations_is_refused(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "k.yaml").write_text(KNOWN.replace("engine", "[]"))
    result = run("--expectations=k.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--expectations: k.yaml:2:9: should be a text, not []" in result.stderr.str()


def test_own_specs_run_beside_the_shipped_ones(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "shipped").mkdir()
    (pytester.path / "shipped" / "case.yaml").write_text(CASE.replace("area/case", "area/shipped"))
    (pytester.path / "mine").mkdir()
    (pytester.path / "mine" / "own.yaml").write_text(CASE.replace("area/case", "area/own"))
    monkeypatch.setattr(collect, "SPECS", pytester.path / "shipped")
    module = str(Path(plugin.__file__).parent / "test_specs.py")
    args = (f"--rootdir={pytester.path}", "--noconftest", "--specs=mine", "--report-json=r.json")
    run(*args, on=module).assert_outcomes(passed=2)
    assert [item["spec"] for item in document(pytester)["items"]] == ["area/shipped", "area/own"]


@pytest.mark.parametrize("folder", ["none", "empty", "case.yaml"])
def test_a_folder_without_specs_is_refused(run: Run, pytester: pytest.Pytester, folder: str) -> None:
    (pytester.path / "empty").mkdir()
    result = run(f"--specs={folder}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--specs {folder}: expected a folder with specs (*.yaml)" in result.stderr.str()


def test_a_deviation_of_a_spec_that_the_run_does_not_know_is_refused(
    run: Run, pytester: pytest.Pytester
) -> None:
    (pytester.path / "k.yaml").write_text(KNOWN.replace("area/case", "area/cases"))
    result = run("--expectations=k.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = "--expectations: k.yaml:4:11: no spec is called 'area/cases', did you mean 'area/case'?"
    assert told in result.stderr.str()

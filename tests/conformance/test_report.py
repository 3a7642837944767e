"""What the terminal shows; texts are snapshots because they are the product."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance.access import shown
from conformance.report.footer import curl_line, replay_line, write_body
from conformance.report.terminal import (
    Entry,
    by_requirement,
    end_table,
    facts_line,
    skip_reason,
    unjudged,
    verdict_text,
)
from conformance.verdict import Status, Verdict
from tests.conformance.builders import burst, facts, judge, seed, workload

FAILED = judge("adopters", workload(seed(), *burst([192, 192, *[0] * 6])), of="eight")


def test_a_failure_says_everything_in_order(snapshot: SnapshotAssertion) -> None:
    footer = ["curl -sS http://127.0.0.1:8000/v1/completions -d '{}'", "pytest specs/adopt/x.yaml::adopters"]
    assert verdict_text(FAILED, "Eight concurrent requests share one stored prefix", footer) == snapshot


def test_a_vacuous_verdict_shows_its_guard(snapshot: SnapshotAssertion) -> None:
    assert (
        verdict_text(Verdict(Status.VACUOUS, "out/1", reason="no request of 'eight' reports a hit"))
        == snapshot
    )


def test_an_error_is_short(snapshot: SnapshotAssertion) -> None:
    assert (
        verdict_text(Verdict(Status.ERROR, "out/1", reason="eight[0] failed: connection reset")) == snapshot
    )


def test_long_observations_are_cut_with_a_count() -> None:
    text = verdict_text(Verdict(Status.FAIL, "out/1", "equal", tuple(f"line {i}" for i in range(70))))
    assert "line 63\n" in text
    assert text.endswith("and 6 more")


def test_as_many_lines_as_fit_are_not_cut() -> None:
    text = verdict_text(Verdict(Status.FAIL, "out/1", "equal", tuple(f"line {i}" for i in range(64))))
    assert text.endswith("line 63")


def test_a_skip_says_why_and_what_was_seen() -> None:
    verdict = Verdict(Status.NOT_CLAIMED, "adopt/1", reason="one slot", notes=("1 of 8 adopted",))
    assert skip_reason(verdict) == "adopt/1 not-claimed: one slot [1 of 8 adopted]"


def test_a_skip_without_notes_has_no_brackets() -> None:
    verdict = Verdict(Status.UNOBSERVABLE, "adopt/1", reason="no counts")
    assert skip_reason(verdict) == "adopt/1 unobservable: no counts"


def test_the_target_in_one_line() -> None:
    assert facts_line(facts(version="0.1.0", model="tiny", has_reset=False)) == (
        "conformance-engine 0.1.0 · tiny · B 32 G 32 C 256 pool 4096 · sharing all · grade bits · shows "
        "cached tokens, ids in, ids out, logprobs, salt, statistics; lacks reset"
    )


def test_an_unknown_target_shows_question_marks() -> None:
    shown = dict.fromkeys(
        ("reports_cached", "takes_ids", "returns_ids", "has_logprobs", "has_salt", "has_reset", "has_stats"),
        False,
    )
    line = facts_line(facts(name="x", block=None, granule=None, chunk=None, pool_blocks=None, **shown))
    assert line.startswith("x · B ? G ? C ? pool ? ·")
    assert "shows nothing; lacks cached tokens, ids in" in line


def test_what_is_lacking_is_shown_with_what_it_takes() -> None:
    line = facts_line(facts(has_reset=False, needs={"has_reset": "--dev", "has_stats": "--metrics"}))
    assert line.endswith("salt, statistics; lacks reset (takes --dev)")


def test_what_speaks_against_the_target_is_in_its_line() -> None:
    line = facts_line(facts(several_caches="a router", contradictions=["granule 16 declared, 32 seen", "b"]))
    assert line.endswith(
        " · SEVERAL CACHES: a router · CONTRADICTS its dialect: granule 16 declared, 32 seen · "
        "CONTRADICTS its dialect: b"
    )


ENTRIES = [
    Entry("adopt/warm-burst", "adopt/1", Status.PASS),
    Entry("adopt/warm-burst", "out/1", Status.FAIL, "3 of 8 equal"),
    Entry("adopt/cold-burst", "out/1", Status.PASS),
    Entry("adopt/cold-burst", "adopt/3", Status.NOT_CLAIMED, "one slot per entry"),
    Entry("foot/tiny-fat", "foot/1", Status.UNOBSERVABLE, "its process is not known"),
    Entry("adopt/warm-burst", "count/1", Status.PASS),
    Entry("store/dense", "store/6", Status.PASS),
]


def test_the_table_at_the_end(snapshot: SnapshotAssertion) -> None:
    assert end_table(ENTRIES) == snapshot


def test_a_narrow_table_keeps_its_columns(snapshot: SnapshotAssertion) -> None:
    assert end_table(ENTRIES, width=70) == snapshot


def test_the_table_is_worst_first() -> None:
    rows = [line.split()[0] for line in end_table(ENTRIES, width=500).splitlines()[1:-3]]
    assert rows == ["out/1", "foot/1", "adopt/3", "adopt/1", "store/6", "count/1"]


def summary(*entries: Entry) -> list[str]:
    lines = end_table(entries, width=500).splitlines()
    return lines[1 + len({entry.requirement for entry in entries}) :]


def test_the_summary_names_all_that_was_not_judged() -> None:
    entries = [
        Entry("a", "adopt/1", Status.PASS),
        Entry("a", "store/3", Status.UNOBSERVABLE, "no counters"),
        Entry("a", "store/1", Status.UNOBSERVABLE, "no counters"),
        Entry("a", "out/1", Status.VACUOUS, "no hit"),
        Entry("a", "count/1", Status.ERROR, "gone"),
    ]
    assert summary(*entries) == [
        "MUST: 1 of 5 pass, 1 error (count/1), 1 vacuous (out/1), 2 unobservable (store/1, store/3)"
    ]


def test_an_item_that_fails_the_run_under_a_requirement_that_passes_is_told() -> None:
    entries = [
        Entry("a", "out/1", Status.PASS),
        Entry("b", "out/1", Status.VACUOUS, "no hit", failed=True),
        Entry("c", "out/1", Status.INCONCLUSIVE, "no logprobs"),
    ]
    assert summary(*entries) == ["MUST: 1 of 1 pass, 1 vacuous item fails the run (out/1)"]
    again = Entry("d", "out/1", Status.VACUOUS, "no hit", failed=True)
    assert summary(*entries, again) == ["MUST: 1 of 1 pass, 2 vacuous items fail the run (out/1)"]


def test_what_was_not_run_is_one_line_with_its_reason() -> None:
    passed = Entry("a", "out/1", Status.PASS)
    golden = [Entry("a", "out/1", Status.NOT_RUN, f"no {name}.ci.json") for name in ("a", "b", "b")]
    assert summary(passed, *golden)[1:] == ["3 not run: no a.ci.json (and 1 more)"]
    assert summary(passed, Entry("a", "out/1", Status.NOT_RUN))[1:] == ["1 not run"]
    assert summary(passed)[1:] == []


def test_lines_that_their_author_laid_out_stay_as_they_are() -> None:
    text = "  8B - 600 " + "x" * 120
    located = f"case.yaml:6:20: '8B-600' is -344 tokens on this target\n{text}\n    ^\nlegal here: 1 and more"
    lines = verdict_text(Verdict(Status.ERROR, "out/1", reason=located)).splitlines()
    assert [line[12:] for line in lines if "adopt" not in line][-3:] == [
        text,
        "    ^",
        "legal here: 1 and more",
    ]
    assert lines[-4] == "  verdict   error: case.yaml:6:20: '8B-600' is -344 tokens on this target"


def test_the_table_shows_the_first_line_of_a_reason() -> None:
    table = end_table([Entry("a", "out/1", Status.ERROR, "case.yaml:6:20: wrong\n    8B\n    ^")], width=300)
    assert table.splitlines()[1].endswith("case.yaml:6:20: wrong")


def test_nothing_judged_gives_no_table() -> None:
    assert end_table([]) == ""


def test_within_a_spec_the_worst_counts_and_over_specs_a_pass() -> None:
    entries = [
        Entry("a", "out/1", Status.PASS),
        Entry("a", "out/1", Status.VACUOUS),
        Entry("b", "out/1", Status.PASS),
        Entry("a", "out/2", Status.PASS),
        Entry("a", "out/2", Status.VACUOUS),
    ]
    assert by_requirement(entries) == {"out/1": Status.PASS, "out/2": Status.VACUOUS}


def test_what_was_not_run_does_not_hide_what_was() -> None:
    entries = [Entry("a", "out/1", Status.PASS), Entry("a", "out/1", Status.NOT_RUN)]
    assert by_requirement(entries) == {"out/1": Status.PASS}
    assert by_requirement(entries[1:]) == {"out/1": Status.NOT_RUN}


def test_long_reasons_are_cut_and_counted() -> None:
    entries = [Entry("a", "out/1", Status.FAIL, "word " * 100), Entry("b", "out/1", Status.FAIL, "another")]
    said = end_table(entries, width=300).splitlines()[1]
    assert said.endswith("word … (and 1 more)")
    assert len(said) < 200


@pytest.mark.parametrize("status", [Status.PASS, Status.FAIL, Status.NOT_CLAIMED])
def test_judged_or_not_claimed_satisfies_the_minimum(status: Status) -> None:
    assert unjudged([Entry("a", "out/1", status)], ["out/1"]) == []


@pytest.mark.parametrize("status", [Status.ERROR, Status.VACUOUS, Status.UNOBSERVABLE, Status.NOT_RUN])
def test_anything_else_does_not(status: Status) -> None:
    assert unjudged([Entry("a", "out/1", status)], ["out/1", "adopt/1"]) == ["out/1", "adopt/1"]


URL = "http://127.0.0.1:8000/v1/completions"


def test_a_short_body_is_part_of_the_curl_line(tmp_path: Path) -> None:
    body = json.dumps({"prompt": "it's"}).encode()
    words = shlex.split(curl_line(URL, body, tmp_path))
    assert words == ["curl", "-sS", "-N", URL, "-H", "Content-Type: application/json", "-d", body.decode()]
    assert list(tmp_path.iterdir()) == []


def test_a_long_body_is_a_file_of_its_own(tmp_path: Path) -> None:
    body = json.dumps({"prompt": list(range(3700))}).encode()
    line = curl_line(URL, body, tmp_path / "requests")
    name = shlex.split(line)[-1]
    assert name.startswith(f"@{tmp_path}/requests/")
    assert Path(name[1:]).read_bytes() == body
    assert len(line) < 300


def test_a_body_that_looks_like_a_file_name_is_a_file(tmp_path: Path) -> None:
    assert shlex.split(curl_line(URL, b"@/etc/passwd", tmp_path))[-1].startswith(f"@{tmp_path}")


def test_the_same_body_is_one_file(tmp_path: Path) -> None:
    assert write_body(b"x", tmp_path) == write_body(b"x", tmp_path)
    assert write_body(b"y", tmp_path) != write_body(b"x", tmp_path)


def test_secrets_are_named_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFORMANCE_API_KEY", "sk-secret")
    monkeypatch.setenv("TEAM_TOKEN", "t0p")
    line = curl_line(URL, b"{}", tmp_path, shown(["X-Team=TEAM_TOKEN"], os.environ))
    assert "sk-secret" not in line
    assert "t0p" not in line
    said = subprocess.run(["sh", "-c", f"echo {line}"], capture_output=True, text=True, check=True).stdout
    assert "-H Authorization: Bearer sk-secret -H X-Team: t0p -d {}" in said


def test_the_replay_line_can_be_pasted() -> None:
    line = replay_line("specs/adopt/ladder.yaml::adopters[n=1G-1]", Path(".conformance/my history.jsonl"))
    assert shlex.split(line) == [
        "pytest",
        "specs/adopt/ladder.yaml::adopters[n=1G-1]",
        "--replay=.conformance/my history.jsonl",
    ]

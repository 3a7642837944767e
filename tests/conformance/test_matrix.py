"""Requirements by targets: every verdict keeps its word, and words of a server are never markup."""

from __future__ import annotations

import pytest

from conformance.report.matrix import Column, as_json, columns_of, markdown, share, text
from conformance.report.terminal import Entry
from conformance.verdict import Status


def entry(requirement: str, status: Status, on: str = "one", spec: str = "a/b", reason: str = "") -> Entry:
    return Entry(spec, requirement, status, reason, on=on)


ENTRIES = [
    entry("count/1", Status.PASS),
    entry("adopt/1", Status.FAIL, reason="eight[0] adopted <nothing> | at all"),
    entry("adopt/3", Status.VACUOUS, reason="nothing hit"),
    entry("adopt/1", Status.PASS, on="two"),
    entry("store/1", Status.UNOBSERVABLE, on="two", reason="no statistics"),
]


def test_columns_are_the_targets_by_name() -> None:
    found = columns_of(ENTRIES[::-1], {"two": "the second"})
    assert [(c.label, c.about, len(c.entries)) for c in found] == [("one", "", 3), ("two", "the second", 2)]


def test_a_text_has_a_row_a_requirement_in_the_order_of_the_law() -> None:
    rows = [line.split() for line in text(columns_of(ENTRIES, {}), 100).splitlines()]
    assert rows[:5] == [
        ["requirement", "level", "one", "two"],
        ["adopt/1", "MUST", "fail", "pass"],
        ["adopt/3", "SHOULD", "vacuous", "-"],
        ["store/1", "MUST", "-", "unobservable"],
        ["count/1", "MUST", "pass", "-"],
    ]
    assert rows[-1][0] == "two:"


@pytest.mark.parametrize("status", list(Status))
def test_only_a_pass_counts_as_one(status: Status) -> None:
    passed = "1 pass" in share([entry("adopt/1", status)])
    assert passed is (status is Status.PASS)
    if status is not Status.PASS:
        assert f"1 {status}" in share([entry("adopt/1", status)]) or status is Status.NOT_CLAIMED


def test_the_share_leaves_out_what_is_not_claimed_and_what_is_no_must() -> None:
    said = share(
        [
            entry("adopt/1", Status.PASS),
            entry("adopt/2", Status.FAIL),
            entry("store/1", Status.UNOBSERVABLE),
            entry("out/1", Status.NOT_CLAIMED),
            entry("adopt/3", Status.PASS),
        ]
    )
    assert said == "2 of 3 claimed MUSTs judged, 1 pass, 1 fail, 1 unobservable, 1 not-claimed"


def test_markdown_holds_the_table_and_why_what_did_not_pass() -> None:
    lines = markdown(
        [Column("one", "one | server", ENTRIES[:3], ["h.jsonl"], ["the end is missing"])]
    ).splitlines()
    assert lines[:4] == [
        "| requirement | level | one |",
        "| --- | --- | --- |",
        "| adopt/1 | MUST | fail |",
        "| adopt/3 | SHOULD | vacuous |",
    ]
    assert "one \\| server" in lines
    assert "From h.jsonl: 2 of 2 claimed MUSTs judged, 1 pass, 1 fail." in lines
    assert "Note: the end is missing." in lines
    assert "| adopt/1 | fail | eight[0] adopted &lt;nothing> \\| at all |" in lines
    assert not any(line.startswith("| count/1 | pass") for line in lines)


def test_a_target_that_passes_everything_needs_no_reasons() -> None:
    assert "what it says" not in markdown([Column("one", "", ENTRIES[:1])])


def test_json_tells_verdict_counts_and_reason_of_each_target() -> None:
    document = as_json(columns_of(ENTRIES, {}))
    assert document["format"] == 1
    first = document["requirements"][0]
    assert (first["id"], first["level"]) == ("adopt/1", "MUST")
    assert first["verdicts"] == {
        "one": {"verdict": "fail", "items": {"fail": 1}, "reason": "eight[0] adopted <nothing> | at all"},
        "two": {"verdict": "pass", "items": {"pass": 1}, "reason": ""},
    }
    assert document["requirements"][1]["verdicts"]["two"] is None

"""Requirements by targets: every verdict keeps its word, and words of a server are never markup."""

from __future__ import annotations

import pytest

from conformance.report.matrix import Column, Share, as_json, columns_of, markdown, share, share_of, text
from conformance.report.terminal import Entry
from conformance.requirements import Level
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


MIXED = [
    entry("adopt/1", Status.PASS),
    entry("adopt/2", Status.FAIL),
    entry("store/1", Status.UNOBSERVABLE),
    entry("out/1", Status.NOT_CLAIMED),
    entry("adopt/3", Status.PASS),
    entry("store/6", Status.PASS),
]
"""Four MUSTs, a SHOULD, and one for the bundled engine alone."""


def test_the_share_tells_each_level_and_leaves_out_what_is_not_claimed() -> None:
    must = "2 of 3 claimed MUSTs judged, 66 %, 1 pass, 1 fail, 1 unobservable, 1 not-claimed"
    assert share(MIXED) == f"{must}; 1 of 1 claimed SHOULDs judged, 100 %, 1 pass"


def test_a_level_that_nothing_looks_at_is_not_told() -> None:
    assert share(MIXED[4:5]) == "1 of 1 claimed SHOULDs judged, 100 %, 1 pass"
    assert share(MIXED[5:]) == "no MUST and no SHOULD was looked at"


@pytest.mark.parametrize(
    ("status", "share"),
    [
        (Status.PASS, Share(claimed=2, judged=2, passed=2)),
        (Status.FAIL, Share(claimed=2, judged=2, passed=1)),
        (Status.NOT_CLAIMED, Share(claimed=1, judged=1, passed=1)),
        *((other, Share(claimed=2, judged=1, passed=1)) for other in list(Status)[1:6]),
        (Status.NOT_RUN, Share(claimed=2, judged=1, passed=1)),
    ],
)
def test_judged_is_what_passes_or_fails_and_claimed_all_but_one_verdict(status: Status, share: Share) -> None:
    assert share_of([entry("adopt/1", Status.PASS), entry("adopt/2", status)], Level.MUST) == share


@pytest.mark.parametrize(
    ("id_", "status", "claimed"),
    [
        ("key/4", Status.UNOBSERVABLE, 1),
        ("key/4", Status.VACUOUS, 2),
        ("key/4", Status.FAIL, 2),
        ("key/3", Status.UNOBSERVABLE, 2),
        ("evict/2", Status.UNOBSERVABLE, 2),
    ],
)
def test_what_is_about_test_builds_alone_is_claimed_where_it_could_be_seen(
    id_: str, status: Status, claimed: int
) -> None:
    assert share_of([entry("adopt/1", Status.PASS), entry(id_, status)], Level.MUST).claimed == claimed


@pytest.mark.parametrize(
    ("share", "percent", "said"),
    [
        (Share(3, 2, 2), 66, "2 of 3 (66 %)"),
        (Share(52, 52, 1), 100, "52 of 52 (100 %)"),
        (Share(1000, 999, 0), 99, "999 of 1000 (99 %)"),
        (Share(0, 0, 0), None, "0 of 0"),
    ],
)
def test_a_percentage_is_of_what_is_claimed_and_never_rounded_up(
    share: Share, percent: int | None, said: str
) -> None:
    assert (share.percent, str(share)) == (percent, said)


def test_markdown_tells_how_much_was_judged_of_each_target() -> None:
    lines = markdown([Column("one", "", MIXED), Column("two", "", MIXED[4:])]).splitlines()
    start = lines.index("|  | one | two |")
    assert lines[start - 1] == ""
    assert lines[start + 1 : start + 6] == [
        "| --- | --- | --- |",
        "| claimed MUSTs judged | 2 of 3 (66 %) | 0 of 0 |",
        "| of these pass | 1 | 0 |",
        "| claimed SHOULDs judged | 1 of 1 (100 %) | 1 of 1 (100 %) |",
        "| of these pass | 1 | 1 |",
    ]


def test_json_tells_how_much_was_judged_in_numbers() -> None:
    (target,) = as_json([Column("one", "", MIXED[:4])])["targets"]
    assert target["shares"] == {
        "MUST": {"claimed": 3, "judged": 2, "passed": 1, "percent": 66},
        "SHOULD": {"claimed": 0, "judged": 0, "passed": 0, "percent": None},
    }


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
    must = "2 of 2 claimed MUSTs judged, 100 %, 1 pass, 1 fail"
    assert f"From h.jsonl: {must}; 0 of 1 claimed SHOULDs judged, 0 %, 0 pass, 1 vacuous." in lines
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

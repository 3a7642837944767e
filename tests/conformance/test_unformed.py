"""Names are looked at also where the form of a spec is wrong, as long as what they refer to can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.test_load import GOOD, places, refused

BAD = GOOD.replace("title: A sample", "title: 3")
"""With one mistake of form, in line 3."""
FORM = (3, 8, "should be a text, not 3")


def test_a_mistake_of_form_alone_accuses_no_name(tmp_path: Path) -> None:
    assert places(refused(tmp_path, BAD)) == [FORM]


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("[count/1, adopt/1]", "[count/1, adopt/99]", (4, 19, "there is no requirement adopt/99")),
        ("[system, {unique: n}]", "[sistem, {unique: n}]", (10, 14, "no text is called 'sistem'")),
        ("head_of: system", "head_of: sistem", (14, 24, "no text is called 'sistem'")),
        ("{unique: n}", "{repeat_of: sead}", (10, 34, "no step is called 'sead'")),
        ("- wait: idle", "- join: sead", (16, 11, "no step is called 'sead'")),
        ("- wait: idle", "- loop: 2\n    steps: [{join: sead}]", (17, 20, "no step is called 'sead'")),
        ("counted: {of: eight}", "counted: {of: eigt}", (18, 19, "no step is called 'eigt'")),
        (
            "counted: {of: eight}",
            "counted: {of: eight, as: count/99}",
            (18, 30, "there is no requirement count/99"),
        ),
        (
            "counted: {of: eight}",
            "delta: {gauge: live, equals: 0, since: befor, until: before}",
            (18, 44, "no mark is called 'befor'"),
        ),
    ],
)
def test_a_wrong_name_is_told_beside_it(
    tmp_path: Path, old: str, new: str, place: tuple[int, int, str]
) -> None:
    assert old in BAD
    assert places(refused(tmp_path, BAD.replace(old, new, 1))) == [FORM, place]


def test_an_arm_is_known_where_arms_can_be_read(tmp_path: Path) -> None:
    other = BAD.replace("counted: {of: eight}", "same_as: {of: eight, arm: b, as: count/1}")
    assert places(refused(tmp_path, other)) == [FORM]
    arms = other.replace("texts:", "arms: {a: {one_by_one: true}}\ntexts:")
    assert places(refused(tmp_path, arms)) == [FORM, (19, 31, "no arm is called 'b'")]


def test_what_one_mistake_hides_from_view_is_not_told_as_others(tmp_path: Path) -> None:
    for old, new, line in [
        ("texts:", "txts:", 5),
        ("- burst: eight", "- bust: eight", 12),
        ("- mark: before", "- before", 11),
        ("- burst: eight\n", "- burst: all\n    each: [{nmae: eight, requests: 2, prompt: [system]}]\n", 13),
    ]:
        assert [place[0] for place in places(refused(tmp_path, GOOD.replace(old, new)))] == [line], new


def test_a_place_is_accused_once(tmp_path: Path) -> None:
    found = places(refused(tmp_path, BAD.replace("[count/1, adopt/1]", "[count/1, ADOPT]")))
    assert [place[:2] for place in found] == [(3, 8), (4, 19)]


def test_a_mistake_in_one_expectation_hides_no_name_in_another(tmp_path: Path) -> None:
    text = GOOD.replace("counted: {of: eight}", "counted: {off: eight}").replace(
        "of: eight, at", "of: eigt, at"
    )
    assert [place[:2] for place in places(refused(tmp_path, text))] == [(18, 14), (18, 15), (19, 20)]

"""A changed golden says where the reply leaves the reviewed one, how close that was, and what was cached."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.review import differences

BASE: dict[str, Any] = {
    "prompt": "aa",
    "cached": 544,
    "finish": "length",
    "ids": ["1 2 3", "4 5"],
    "text": "abcde",
    "gaps": ["0.50 0.60 0.70", "0.01 0.90"],
}


def said(old: dict[str, Any], **changes: Any) -> str:
    [(name, words)] = differences({"eight[0]": BASE | changes}, {"eight[0]": old})
    assert name == "eight[0]"
    return words


def test_equal_entries_have_no_difference() -> None:
    assert differences({"a": BASE}, {"a": dict(BASE)}) == []


def test_the_first_differing_token_its_gap_and_what_was_cached() -> None:
    changed = {"ids": ["1 9 8", "7 6"], "gaps": ["0.50 0.40 0.70", "0.01 0.90"], "cached": 512}
    assert said(BASE, **changed) == (
        "token 1 is 9, reviewed 2; top-2 gap there 0.40, reviewed 0.60; cached 512, reviewed 544"
    )


def test_a_close_choice_is_called_one() -> None:
    words = said(BASE, ids=["1 2 3", "9 5"])
    assert "top-2 gap there 0.01, reviewed 0.01 (close: another machine may choose the other token)" in words


def test_a_shorter_reply_ends_where_it_ends() -> None:
    words = said(BASE, ids=["1 2 3", "4"], gaps=["0.50 0.60 0.70", "0.01"])
    assert words.startswith("token 4 is nothing, reviewed 5; top-2 gap there nothing, reviewed 0.90")


def test_without_ids_the_text_is_compared() -> None:
    old = BASE | {"ids": [], "gaps": []}
    expected = "the text differs from character 2 on; cached 544, reviewed 544"
    assert said(old, ids=[], gaps=[], text="abXde") == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cached": 0}, "the reply is the reviewed one, but cached 0, reviewed 544"),
        ({"finish": "stop"}, "ends with stop, reviewed length"),
        ({"prompt": "bb"}, "has another prompt than the reviewed one, so its reply is no evidence"),
        (
            {"gaps": ["0.50 0.60 0.95", "0.01 0.90"]},
            "the top-2 gap of token 2 is 0.95, reviewed 0.70; cached 544, reviewed 544",
        ),
        ({"gaps": []}, "the top-2 gap of token 0 is nothing, reviewed 0.50; cached 544, reviewed 544"),
    ],
)
def test_what_else_may_differ(changes: dict[str, Any], expected: str) -> None:
    assert said(BASE, **changes) == expected


def test_requests_that_came_or_went() -> None:
    assert differences({"a": BASE, "new": BASE}, {"a": BASE, "old": BASE}) == [
        ("new", "was not there when the file was reviewed"),
        ("old", "is in the file, but not in this run"),
    ]


@pytest.mark.parametrize("old", [None, [], {"a": 1}])
def test_a_file_of_another_shape_gives_no_words(old: object) -> None:
    assert differences({"a": BASE}, old) == []

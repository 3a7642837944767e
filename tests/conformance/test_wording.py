"""What pydantic finds is told in the words of a YAML file: each kind of error once, and each way once."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conformance.wording import message, shown
from tests.conformance.test_load import GOOD, places, refused


class Sample(BaseModel):
    model_config = ConfigDict(strict=True)

    text: Annotated[str, Field(min_length=1)] = "x"
    whole: int = Field(1, ge=1, le=4)
    number: float = Field(1.0, gt=0, lt=2, allow_inf_nan=False)
    flag: bool = True
    word: Literal["a", "b"] = "a"
    only: Literal[True] = True
    day: date = date(2027, 3, 1)
    items: Annotated[list[int], Field(min_length=1, max_length=2)] = [1]
    table: dict[str, int] = {}
    odd: Annotated[str, Field(pattern=r"^odd$")] = "odd"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("text", 3, "should be a text, not 3"),
        ("text", "", "should be a text that is not empty, not ''"),
        ("whole", True, "should be a whole number, not true"),
        ("whole", 1.5, "should be a whole number, not 1.5"),
        ("whole", 0, "should be 1 or more, not 0"),
        ("whole", 5, "should be 4 or less, not 5"),
        ("number", "x", "should be a number, not 'x'"),
        ("number", 0.0, "should be more than 0, not 0.0"),
        ("number", 2.0, "should be less than 2, not 2.0"),
        ("number", float("inf"), "should be a finite number, not inf"),
        ("flag", None, "should be true or false, not nothing"),
        ("word", "c", "should be 'a' or 'b', not 'c'"),
        ("only", False, "should be true, not false"),
        ("day", 3, "should be a day, as in 2027-03-01, not 3"),
        ("items", [], "at least one item is needed"),
        ("items", [1, 2, 3], "at most 2 items fit"),
        ("items", {"a": True}, 'a list is needed, not {"a": true}'),
        ("table", [None], "a mapping is needed, not [null]"),
        ("odd", "even", "should be a text that matches ^odd$, not 'even'"),
    ],
)
def test_each_kind_of_error_in_plain_words(name: str, value: object, told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate({name: value})
    [error] = caught.value.errors()
    assert message(error) == told


def test_a_long_value_is_cut() -> None:
    assert shown("x" * 99) == "'" + "x" * 36 + "..."
    assert shown("x" * 38) == "'" + "x" * 38 + "'"


def test_ways_that_read_alike_are_said_once(tmp_path: Path) -> None:
    text = GOOD.replace("requests: 8", "requests: 8\n    adapter: 3")
    assert places(refused(tmp_path, text)) == [(14, 14, "should be a text, not 3")]


def test_ways_that_differ_are_all_said(tmp_path: Path) -> None:
    text = GOOD.replace("requests: 8", "requests: 8\n    adapter: Big")
    told = "should be a name (a-z, 0-9, _ and -, a letter first) or a ladder's word ($ and a name), not 'Big'"
    assert places(refused(tmp_path, text)) == [(14, 14, told)]

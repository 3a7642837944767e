"""The law as data, and its published copy."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from conformance.requirements import AREAS, REQUIREMENTS, Level, get, matching, tables

DOCUMENT = Path(__file__).parents[2] / "docs" / "requirements.md"

COUNTS = {
    "adopt": 9, "store": 9, "out": 7, "key": 7, "life": 6, "count": 6, "evict": 8,
    "reset": 4, "foot": 4, "tmpl": 2,
}  # fmt: skip

SHOULD = {
    "adopt/3", "adopt/4", "adopt/8", "store/9", "out/6", "key/5", "foot/3", "tmpl/2"
}  # fmt: skip


def test_there_are_62_in_ten_areas_numbered_without_gaps() -> None:
    assert Counter(r.area for r in REQUIREMENTS.values()) == COUNTS
    assert list(REQUIREMENTS) == [f"{area}/{n}" for area in COUNTS for n in range(1, COUNTS[area] + 1)]
    assert list(AREAS) == list(COUNTS)


def test_levels_are_those_of_the_law() -> None:
    by_level = {level: {r.id for r in REQUIREMENTS.values() if r.level is level} for level in Level}
    assert by_level[Level.SHOULD] == SHOULD
    assert by_level[Level.REFERENCE] == {"store/6", "store/7"}
    assert len(by_level[Level.MUST]) == 52


def test_every_requirement_is_a_sentence_with_a_guard() -> None:
    assert all(r.sentence.endswith(".") and r.guard.endswith((".", ")")) for r in REQUIREMENTS.values())


def test_conditions_are_part_of_how_binding_it_is() -> None:
    assert get("key/4").binding == "MUST (test build)"
    assert get("adopt/1").binding == "MUST"


def test_an_unknown_id_names_its_neighbours() -> None:
    with pytest.raises(KeyError, match=r"no requirement 'adpt/1'; did you mean adopt/1"):
        get("adpt/1")


def test_an_id_like_nothing_names_the_areas() -> None:
    with pytest.raises(KeyError, match=r"did you mean adopt, store, out"):
        get("xyzzy")


@pytest.mark.parametrize(
    ("prefix", "ids"),
    [
        ("foot", ["foot/1", "foot/2", "foot/3", "foot/4"]),
        ("adopt/2", ["adopt/2"]),
        ("ad", []),
        ("adopt/", []),
    ],
)
def test_a_prefix_selects_an_area_or_one(prefix: str, ids: list[str]) -> None:
    assert [r.id for r in matching(prefix)] == ids


def test_tables_have_a_heading_for_each_area() -> None:
    found = tables([get("foot/4"), get("tmpl/1")])
    assert found.splitlines()[0] == "## foot: process memory"
    assert "| tmpl/1 | MUST | Engine and template are judged apart" in found
    assert found.count("| id | level | requirement | guard |") == 2


def test_the_published_law_holds_exactly_these_tables() -> None:
    """When this fails: `python -m conformance.requirements` prints the tables to put into the document."""
    assert tables() in DOCUMENT.read_text(encoding="utf-8")


def test_the_published_law_lists_no_other_requirement() -> None:
    rows = re.findall(r"^\| ([a-z]+/\d+) \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == list(REQUIREMENTS)

"""`docs/dialects.md` says of each family what its file says, and names every key and fact of a file."""

from __future__ import annotations

import re

import pytest

from conformance.dialect import FOLDER, Answer, Ask, Dialect, Source, dialects
from conformance.history import Facts

PAGE = (FOLDER.parent.parent / "docs" / "dialects.md").read_text(encoding="utf-8")
HEAD = "| dialect | cached tokens | granule | a cold run | what to start it with |"
KNOWN = {known.dialect: known for known in dialects()}
HOSTED = {"openai", "deepseek", "anthropic"}
MEASURED = {
    *(fact for fact in Facts.model_fields if re.match("has_|can|takes_|returns_|reports_", fact)),
    *("dialect", "name", "version", "model", "how", "lcp_slack", "adapters", "claims", "machine", "needs"),
    *("several_caches", "contradictions", "asked_model", "refuses_logprobs"),
}
"""Facts that follow from other keys or from the probe: no file declares them."""


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def rows(head: str) -> list[list[str]]:
    """The cells of the table that starts with a line."""
    below = PAGE.split(head + "\n", 1)[1].splitlines()[1:]
    table = below[: next((i for i, line in enumerate(below) if not line.startswith("|")), len(below))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


FAMILIES = {name: row for row in rows(HEAD) for name in words(row[0])}


def test_every_family_but_the_bundled_engine_has_one_row() -> None:
    named = [name for row in rows(HEAD) for name in words(row[0])]
    assert sorted([*named, "engine"]) == sorted(KNOWN)


@pytest.mark.parametrize("name", FAMILIES)
def test_where_cached_tokens_are_told_is_where_they_are_read(name: str) -> None:
    dialect, said = KNOWN[name], FAMILIES[name][1]
    roots = {"usage": "usage.", "timings": "timings."}
    for word, root in roots.items():
        if word in said:
            assert any(path.startswith(root) for path in dialect.answer.cached)
    assert ("chat" in said) == (dialect.ask.form == "chat" and name not in HOSTED)
    assert ("left out when 0" in said) == dialect.answer.absent_is_zero
    if name != "generic":
        assert ("timings" in said) == any(path.startswith("timings.") for path in dialect.answer.cached)
    if said.startswith("not "):
        assert "reports_cached" in dialect.needs


@pytest.mark.parametrize("name", FAMILIES)
def test_the_granule_is_told_as_the_file_has_it(name: str) -> None:
    dialect, said = KNOWN[name], FAMILIES[name][2]
    granule = dialect.facts.get("granule")
    if isinstance(granule, Source):
        assert words(said) in ([granule.get], [])
        assert said.startswith("told")
    elif granule is None:
        assert said in ("measured", "-")
    else:
        assert said.split(",")[0] == str(granule)
    assert ("in slots" in said) == (dialect.facts.get("sharing") == "slots")
    assert ("parts too" in said) == bool(dialect.facts.get("partial_reuse"))


def cold_words(dialect: Dialect) -> list[str]:
    """How the file lets a request compute everything itself."""
    if dialect.ask.salt:
        return [dialect.ask.salt]
    if dialect.ask.cold:
        return [f"{field}: {str(value).lower()}" for field, value in dialect.ask.cold.items()]
    return [" ".join(dialect.profiles[dialect.cold_profile].args)] if dialect.cold_profile else []


@pytest.mark.parametrize("name", FAMILIES)
def test_a_cold_run_is_told_as_the_file_has_it(name: str) -> None:
    assert words(FAMILIES[name][3]) == cold_words(KNOWN[name])


@pytest.mark.parametrize("name", FAMILIES)
def test_what_to_start_it_with_stands_in_the_file(name: str) -> None:
    source = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    asked = [flag for cell in words(FAMILIES[name][4]) for flag in cell.split() if name not in HOSTED]
    assert [flag for flag in asked if flag not in source] == []


def first_cells() -> set[str]:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    return {word for line in lines for word in words(line.split(" | ")[0])}


def test_every_key_of_a_file_is_told() -> None:
    keys = {key for key in Dialect.model_fields if key not in ("ask", "answer")}
    keys |= {f"ask.{key}" for key in Ask.model_fields} | {f"answer.{key}" for key in Answer.model_fields}
    assert keys - first_cells() == set()


def test_every_fact_that_a_file_may_declare_is_told_and_no_other() -> None:
    told = {word for row in rows("| fact | stands for | if left out |") for word in words(row[0])}
    assert told == set(Facts.model_fields) - MEASURED

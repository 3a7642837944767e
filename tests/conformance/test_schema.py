"""The shipped JSON Schema is the one the types give, and tells an expectation as it is written."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from conformance.judges import JUDGES
from conformance.load import load
from conformance.schema import schema, schema_text

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "specs" / "spec.schema.json"
PAGE = (ROOT / "docs" / "spec-language.md").read_text(encoding="utf-8")


def test_the_shipped_schema_is_current() -> None:
    message = "run `python -m conformance schema --write specs/spec.schema.json`"
    assert SHIPPED.read_text(encoding="utf-8") == schema_text(), message


def test_every_judge_is_a_key_of_an_expectation() -> None:
    expect = schema()["$defs"]["Expect"]
    assert set(expect["properties"]) == set(JUDGES)
    assert (expect["minProperties"], expect["maxProperties"]) == (1, 1)


def test_a_judge_takes_its_arguments_and_the_reserved_keys() -> None:
    adopters = schema()["$defs"]["Expect"]["properties"]["adopters"]
    assert set(adopters["properties"]) == {"of", "at_least", "cached", "as", "id"}
    assert adopters["required"] == ["of"]
    assert adopters["additionalProperties"] is False
    assert adopters["properties"]["as"]["default"] == "adopt/1"


def test_the_ladder_is_written_for() -> None:
    properties = schema()["properties"]
    assert "for" in properties
    assert "ladder" not in properties


def test_every_reference_in_the_schema_resolves() -> None:
    made = schema()
    refs = [line.split('"')[3] for line in schema_text().splitlines() if '"$ref"' in line]
    assert refs
    assert {ref.removeprefix("#/$defs/") for ref in refs} <= set(made["$defs"])


def test_the_reference_names_every_judge_with_its_requirement() -> None:
    missing = [name for name, judge in JUDGES.items() if f"| `{name}` | {judge.requirement} |" not in PAGE]
    assert not missing


def test_the_reference_names_every_key_of_a_spec() -> None:
    assert [key for key in schema()["properties"] if f"`{key}`" not in PAGE] == []


def test_the_sample_of_the_reference_is_a_spec(tmp_path: Path) -> None:
    sample = PAGE.partition("## A small spec\n\n")[2].partition("\n\n")[0]
    (tmp_path / "pair.yaml").write_text(dedent(sample))
    assert load(tmp_path / "pair.yaml").spec.id == "adopt/pair"

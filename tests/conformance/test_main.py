"""`python -m conformance` answers without a server, and says what is legal when asked for something else."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from conformance import __main__ as command
from conformance import catalogue
from conformance.commands import _specs, modules, validate
from conformance.requirements import get
from tests.conformance.fakeback import CASE


@pytest.fixture(autouse=True)
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two specs of our own in place of the shipped ones."""
    ladder = CASE.replace("area/case", "area/ladder").replace(
        "steps:", "for: {n: [1G, 2G]}\nguard: it hit\nsteps:"
    )
    ladder = ladder.replace("unique: 3", "unique: n")
    (tmp_path / "case.yaml").write_text(CASE.replace("texts:", "quick: true\ntexts:"))
    (tmp_path / "ladder.yaml").write_text(ladder)
    monkeypatch.setattr(_specs, "SPECS", tmp_path)
    validate._claimable.cache_clear()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "area/case [quick]: A case",
        "    proves count/1",
        "area/ladder: A case",
        "    proves count/1",
    ]


@pytest.mark.parametrize(("prefix", "count"), [("area/l", 1), ("count/1", 2)])
def test_list_by_prefix(capsys: pytest.CaptureFixture[str], prefix: str, count: int) -> None:
    assert command.main(["list", prefix]) == 0
    assert capsys.readouterr().out.count("proves") == count


def test_validate_the_shipped_specs(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["validate"]) == 0
    assert capsys.readouterr().out.splitlines() == ["case.yaml: fine", "ladder.yaml: fine"]


def test_validate_names_what_is_wrong(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (specs / "bad.yaml").write_text(CASE.replace("title:", "titel:"))
    assert command.main(["validate", "bad.yaml", "case.yaml"]) == 1
    out, err = capsys.readouterr()
    assert out == "case.yaml: fine\n"
    assert "bad.yaml:3:1: unknown key 'titel'" in err


CLAIMS = CASE.replace("texts:", "kills: [consume_on_adopt, consume_on_adapt, 7]\ntexts:")


def test_validate_asks_the_engine_what_may_be_claimed(
    specs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of a file that has other mistakes: they are told together."""
    (specs / "claims.yaml").write_text(CLAIMS.replace("title:", "titel:"))
    assert command.main(["validate", "claims.yaml"]) == 1
    err = capsys.readouterr().err
    assert "claims.yaml:3:1: unknown key 'titel'" in err
    assert "claims.yaml:5:27: there is no fault 'consume_on_adapt', did you mean 'consume_on_adopt'?" in err
    assert err.count("no fault") == 1  # of the two others one is right and one is no name at all


def test_a_wrong_claim_hides_nothing_that_makes_no_sense(
    specs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (specs / "claims.yaml").write_text(CLAIMS.replace(", 7", "").replace("[count/1]", "[count/1, out/1]"))
    assert command.main(["validate", "claims.yaml"]) == 1
    err = capsys.readouterr().err
    assert "no expectation judges out/1" in err
    assert "there is no fault 'consume_on_adapt'" in err


@pytest.mark.parametrize("claimed", ["[Consume_on_adopt]", '["", "a b"]', "7", "{a: b}", "null", "[[a]]"])
def test_what_is_no_name_is_told_once(specs: Path, capsys: pytest.CaptureFixture[str], claimed: str) -> None:
    (specs / "claims.yaml").write_text(CASE.replace("texts:", f"kills: {claimed}\ntexts:"))
    assert command.main(["validate", "claims.yaml"]) == 1
    err = capsys.readouterr().err
    assert "no fault" not in err
    assert "claims.yaml:5:" in err


def test_validate_says_when_nobody_knows_the_faults(
    specs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (specs / "claims.yaml").write_text(CLAIMS.replace(", 7", ""))
    monkeypatch.setattr(catalogue, "listed", Mock(side_effect=catalogue.EngineError("it is gone")))
    assert command.main(["validate", "claims.yaml"]) == 0
    out, err = capsys.readouterr()
    assert out == "claims.yaml: fine\n"
    assert err == "claims of `kills` are not checked: it is gone\n"


def test_validate_starts_no_engine_where_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "listed", Mock(side_effect=AssertionError("the engine was asked")))
    assert command.main(["validate", "case.yaml"]) == 0


def test_validate_nothing_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert command.main(["validate", "empty"]) == 1
    assert "no spec file there" in capsys.readouterr().err


def test_explain_a_requirement(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["explain", "count/1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("count/1 MUST: 0 <= cached")
    assert "  proved by  area/case, area/ladder" in out


def test_explain_an_area(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["explain", "foot"]) == 0
    out = capsys.readouterr().out
    assert "foot/1 MUST" in out
    assert "no shipped spec yet" in out


def test_explain_a_judge(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["explain", "adopters"]) == 0
    out = capsys.readouterr().out
    assert "judges     adopt/1, unless `as:` names another" in out
    assert "of         a step; required" in out
    assert "at_least   default None; how many must adopt" in out


@pytest.mark.parametrize("word", ["area/ladder", "ladder.yaml"])
def test_explain_a_spec(capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert command.main(["explain", word]) == 0
    law = get("count/1")
    assert capsys.readouterr().out.splitlines() == [
        "area/ladder: A case",
        "  file       ladder.yaml",
        f"  proves     count/1 MUST: {law.sentence}",
        "  guard      it hit",
        "  rungs      n=1G, n=2G",
        "  steps      burst eight, mark after",
        '  controls   cold: {"serve": {"profile": "cold"}}',
        "  expects    counted (count/1)",
        "  kills      claims no fault",
    ]


def test_explain_controls_and_claims(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = "kills: [leak_ref_on_abort, other]\narms:\n  again: {}\n  apart: {salt: private}\n"
    (specs / "more.yaml").write_text(CASE.replace("arms:\n", more))
    assert command.main(["explain", "more.yaml"]) == 0
    assert capsys.readouterr().out.splitlines()[-5:] == [
        "  controls   again: the same once more",
        '             apart: {"salt": "private"}',
        '             cold: {"serve": {"profile": "cold"}}',
        "  expects    counted (count/1)",
        "  kills      leak_ref_on_abort, other",
    ]


def test_explain_a_file_that_is_no_spec(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (specs / "bad.yaml").write_text(CASE.replace("title:", "titel:"))
    assert command.main(["explain", "bad.yaml"]) == 1
    assert "bad.yaml:3:1: unknown key 'titel'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("area/lader", "nothing is called 'area/lader'; did you mean area/ladder"),
        ("same_as_soolo", "nothing is called 'same_as_soolo'; did you mean same_as_solo"),
        ("lader.yaml", "there is no file lader.yaml; did you mean ladder.yaml"),
        ("###", "nothing is called '###'; there is: adopt, store, "),
    ],
)
def test_explain_something_else_names_what_is_near(
    capsys: pytest.CaptureFixture[str], word: str, told: str
) -> None:
    assert command.main(["explain", word]) == 2
    assert capsys.readouterr().err.startswith(told)


def test_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["schema"]) == 0
    printed = capsys.readouterr().out
    assert command.main(["schema", "--write", str(tmp_path / "s.json")]) == 0
    assert (tmp_path / "s.json").read_text() == printed
    assert '"$id": "urn:prefix-cache-conformance:spec:1"' in printed


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["frobnicate"])
    assert ended.value.code == 2
    assert "invalid choice: 'frobnicate'" in capsys.readouterr().err


def test_a_module_in_the_folder_of_commands_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_parser(commands: Any) -> None:
        commands.add_parser("seven").set_defaults(run=lambda args: 7)

    monkeypatch.setattr(command, "modules", lambda: [SimpleNamespace(add_parser=add_parser)])
    assert command.main(["seven"]) == 7


def test_every_module_in_the_folder_of_commands_can_be_one() -> None:
    assert all(callable(module.add_parser) for module in modules())


def test_it_runs_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["conformance", "explain", "count/1"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(command.__file__), run_name="__main__")
    assert ended.value.code == 0
    assert "count/1 MUST" in capsys.readouterr().out


def test_a_reader_that_stops_reading_gets_no_traceback() -> None:
    explain = [sys.executable, "-m", "conformance", "schema"]
    with subprocess.Popen(explain, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(timeout=60), said) == (0, b"")

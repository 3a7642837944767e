"""`new`, `matrix`, and what the other commands say of a user's own folder and of wrong files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance import __main__ as command
from conformance.collect import SPECS
from conformance.commands import _specs
from conformance.load import load
from conformance.session import Options, Session
from conformance.verdict import Status
from tests.conformance.fakeback import CASE, Back


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "case.yaml").write_text(CASE)
    monkeypatch.setattr(_specs, "SPECS", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(path: Path, **facts: object) -> Path:
    """A history of the shipped case, by the harness itself on a back that answers at once."""
    back = Back()
    back.facts = back.facts.model_copy(update=facts)
    session = Session(Options(history=path, scale="ci"), back)
    case = load(_specs.SPECS / "case.yaml")
    assert session.verdict(case, "", case.spec.expect[0]).status is Status.PASS
    session.close()
    return path


def test_new_writes_a_start_that_is_valid(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["new", "adopt/my-case", "--specs", "mine"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "mine/adopt/my-case.yaml: written. Next:"
    assert "pytest mine/adopt/my-case.yaml --scale ci" in out
    assert load(folder / "mine" / "adopt" / "my-case.yaml").spec.id == "adopt/my-case"
    assert command.main(["validate", "mine/adopt/my-case.yaml"]) == 0


def test_new_gives_a_folder_its_schema_and_keeps_one_that_is_there(folder: Path) -> None:
    command.main(["new", "adopt/one", "--specs", "mine"])
    schema = folder / "mine" / "spec.schema.json"
    assert schema.read_text() == (SPECS / "spec.schema.json").read_text()
    schema.write_text("{}")
    command.main(["new", "adopt/two", "--specs", "mine"])
    assert schema.read_text() == "{}"


def test_new_goes_to_the_shipped_folder_by_default(folder: Path) -> None:
    assert command.main(["new", "out/mine"]) == 0
    assert (folder / "shipped" / "out" / "mine.yaml").exists()


def test_new_overwrites_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "shipped" / "area").mkdir()
    (folder / "shipped" / "area" / "case.yaml").write_text("mine")
    assert command.main(["new", "area/case"]) == 2
    assert "is there already, and nothing was changed" in capsys.readouterr().err
    assert (folder / "shipped" / "area" / "case.yaml").read_text() == "mine"


@pytest.mark.parametrize("id_", ["case", "Adopt/Case", "../up", "a/..", "a/b/c", "/etc/x", "a/b\n"])
def test_new_refuses_what_is_no_id(folder: Path, id_: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["new", id_]) == 2
    assert "is no id of a spec" in capsys.readouterr().err
    assert [path.name for path in (folder / "shipped").rglob("*")] == ["case.yaml"]


def test_new_says_where_it_could_not_write(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file").write_text("")
    assert command.main(["new", "adopt/x", "--specs", "file"]) == 1
    assert "cannot be written: " in capsys.readouterr().err


def test_the_schema_says_where_it_could_not_write(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["schema", "--write", "none/s.json"]) == 1
    assert "cannot be written: " in capsys.readouterr().err


def test_own_specs_are_listed_and_explained_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["new", "adopt/my-case", "--specs", "mine"])
    capsys.readouterr()
    assert command.main(["list", "--specs", "mine", "adopt"]) == 0
    assert capsys.readouterr().out.startswith("adopt/my-case: ")
    assert command.main(["explain", "adopt/1", "--specs", "mine"]) == 0
    out = capsys.readouterr().out
    assert "proved by  adopt/my-case" in out
    assert "server     llama-server: not claimed: " in out


def test_a_list_of_nothing_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list", "nosuch"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nothing begins with 'nosuch'; there is: area, count\n")


def test_known_deviations_are_validated_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "good.yaml").write_text("expectations: 1\ntarget: vllm\nknown: []\n")
    (folder / "bad.yaml").write_text("expectations: 1\ntarget: vllm\n")
    assert command.main(["validate", "good.yaml", "bad.yaml"]) == 1
    out, err = capsys.readouterr()
    assert out == "good.yaml: fine\n"
    assert "bad.yaml:1:1: the key 'known' is missing" in err


def test_a_matrix_judges_the_files_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = recorded(folder / "one.jsonl"), recorded(folder / "two.jsonl", name="other", version="2.0")
    two.write_text(two.read_text().replace('"cached":16', '"cached":9999', 1))
    assert command.main(["matrix", "one.jsonl", "two.jsonl"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[:2] == [
        ["requirement", "level", "fake", "other-2.0"],
        ["count/1", "MUST", "pass", "fail"],
    ]
    assert one.exists()


def test_a_matrix_as_json_and_as_markdown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(folder / "h.jsonl")
    assert command.main(["matrix", "h.jsonl", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["requirements"][0]["verdicts"]["fake"]["verdict"] == "pass"
    assert document["targets"][0]["files"] == ["h.jsonl"]
    assert command.main(["matrix", "h.jsonl", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| requirement | level | fake |\n")


def test_a_matrix_says_what_it_could_not_judge(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(folder / "h.jsonl")
    cut = path.read_text().replace("area/case", "area/unknown").rsplit("\n", 2)[0] + "\n"
    path.write_text(cut)
    assert command.main(["matrix", "h.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split() == ["count/1", "MUST", "not-run"]
    assert err.splitlines() == [
        "h.jsonl: ends inside area/unknown; judged as far as it goes",
        "h.jsonl: no spec here is called area/unknown",
    ]


def test_a_matrix_of_no_history_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "h.jsonl").write_text('{"event":"header","version":7}\n')
    assert command.main(["matrix", "h.jsonl"]) == 1
    assert "h.jsonl:1: not an event of a history: format 7" in capsys.readouterr().err

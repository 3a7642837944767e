"""The kill matrix: how runs of a mutant add up, and that the published one is about the faults there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conformance import faults, kills
from conformance.__main__ import main
from conformance.collect import SPECS
from conformance.explore.beyond import BEYOND
from conformance.load import load, spec_files
from conformance.mutation import Fate

DOCUMENT = SPECS.parent / "docs" / "kill-matrix.md"


def run(fault: str = "trims", spec: str = "store/case", **said: Any) -> dict[str, Any]:
    """A run that was killed by store/2 while out/1 passed, unless something else is said."""
    cells = said.pop("cells", {"store/2": "fail", "out/1": "pass"})
    return {
        "fault": fault,
        "bug_class": "C02",
        "symptom": "A short match trims the entry.",
        "breaks": ["store/2", "adopt/1"],
        "spec": spec,
        "claimed": True,
        "fate": "killed",
        "reason": "",
        "cells": [
            {"expectation": "e", "requirement": r, "status": s, "witness": "w"} for r, s in cells.items()
        ],
        **said,
    }


def test_one_spec_that_kills_is_proof_enough() -> None:
    survived = run(spec="a/b", fate="survived", cells={"store/2": "pass", "adopt/1": "vacuous"})
    (mutant,) = kills.mutants([survived, run()])
    assert mutant.fate is Fate.KILLED
    assert mutant.killers("store/2") == ["store/case"]
    assert mutant.own(Fate.VACUOUS) == ["adopt/1"]


def test_a_fail_outside_its_class_is_in_no_column_of_its_own() -> None:
    (mutant,) = kills.mutants([run(fate="survived", cells={"store/2": "pass", "out/1": "fail"})])
    assert mutant.fate is Fate.SURVIVED
    assert mutant.own(Fate.KILLED) == []


@pytest.mark.parametrize(
    ("status", "cell"),
    [
        ("fail", Fate.KILLED),
        ("pass", Fate.SURVIVED),
        ("error", Fate.ERROR),
        ("timeout", Fate.ERROR),
        ("vacuous", Fate.VACUOUS),
        ("unobservable", Fate.VACUOUS),
    ],
)
def test_cells(status: str, cell: Fate) -> None:
    (mutant,) = kills.mutants([run(cells={"store/2": status})])
    assert mutant.cells() == {"store/2": cell}


def test_the_later_run_counts() -> None:
    (mutant,) = kills.mutants([run(fate="survived"), run()])
    assert [r["fate"] for r in mutant.runs] == ["killed"]


def test_lines_count_mutants_and_claims() -> None:
    lost = run("lost", fate="survived", reason="nobody said fail", cells={"store/2": "pass"})
    unclaimed = run("trims", "x/y", claimed=False, fate="survived", cells={})
    assert kills.lines([run(), lost, unclaimed]) == [
        "lost   C02  survived  nobody said fail",
        "trims  C02  killed    by store/2 (store/case)",
        "faults: 1 of 2 killed, by 1 of 2 claims of a spec",
    ]


HUNTED = {"fault": "trims", "examples": 7, "by": ["store/2", "out/1"]}


def test_the_document_is_read_back() -> None:
    assert kills.from_json(kills.as_json([run()], [HUNTED])) == ([run()], [HUNTED])


def test_a_document_from_before_there_was_an_explorer_is_read_too() -> None:
    assert kills.from_json('{"format": 1, "runs": []}') == ([], [])


def test_what_the_explorer_found_is_a_table_of_its_own() -> None:
    lost = {"fault": "lost", "examples": 500, "by": []}
    unseen = {"fault": "copy_rows_on_adopt", "examples": 500, "by": []}
    head, table = kills.hunted([{**HUNTED, "examples": 9}, lost, unseen, HUNTED])
    assert head.endswith("1 of 3 mutants found.\n")
    assert table.splitlines()[2:] == [
        f"| `copy_rows_on_adopt` | not found | {BEYOND['copy_rows_on_adopt']} |",
        "| `lost` | not found | not in 500 |",
        "| `trims` | 7 | store/2, out/1 |",
    ]


def test_nothing_is_said_of_an_explorer_that_did_not_run() -> None:
    assert "explorer" not in kills.markdown([run()])


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 2, "runs": []}', "nothing"])
def test_another_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"report-kills|Expecting"):
        kills.from_json(text)


def test_the_command_writes_the_same_markdown_from_any_order(tmp_path: Path) -> None:
    both = [run(), run("lost", fate="vacuous", cells={"adopt/1": "vacuous"})]
    texts = []
    for runs in (both, both[::-1]):
        (tmp_path / "k.json").write_text(kills.as_json(runs))
        assert main(["kills", str(tmp_path / "k.json"), "--write", str(tmp_path / "k.md")]) == 0
        texts.append((tmp_path / "k.md").read_text())
    assert texts[0] == texts[1]
    assert "2 mutants of 1 classes, 1 killed." in texts[0]
    assert "| store/2 | `trims` |" in texts[0]
    assert "| adopt/1 | none |" in texts[0]


def test_the_command_adds_up_what_ran_and_what_was_explored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "k.json").write_text(kills.as_json([run()]))
    (tmp_path / "e.json").write_text(kills.as_json([], [HUNTED]))
    assert main(["kills", str(tmp_path / "k.json"), str(tmp_path / "e.json")]) == 0
    said = capsys.readouterr().out
    assert "1 mutants of 1 classes, 1 killed." in said
    assert said.endswith("| `trims` | 7 | store/2, out/1 |\n")


def test_the_command_prints_unless_told_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k.json").write_text(kills.as_json([run()]))
    assert main(["kills", str(tmp_path / "k.json")]) == 0
    assert capsys.readouterr().out.startswith("# Kill matrix")


def test_cells_show_what_every_requirement_made_of_a_mutant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = {"adopt/1": "vacuous", "store/2": "fail", "out/1": "fail", "out/2": "pass", "out/3": "timeout"}
    other = run("lost", fate="survived", cells={"store/2": "pass"})
    (tmp_path / "k.json").write_text(kills.as_json([run(cells=judged), other]))
    assert main(["kills", str(tmp_path / "k.json"), "--cells"]) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "| mutant | adopt/1 | store/2 | out/1 | out/2 | out/3 |",
        "| --- | --- | --- | --- | --- | --- |",
        "| `lost` |  | s |  |  |  |",
        "| `trims` | v | K | k | s | e |",
    ]


@pytest.mark.parametrize("text", [None, "{}", "not json"])
def test_the_command_says_which_file_it_cannot_read(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "k.json"
    if text is not None:
        path.write_text(text)
    assert main(["kills", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"{path}: cannot be read: ")


def test_the_command_says_where_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k.json").write_text(json.dumps({"format": 1, "runs": []}))
    assert main(["kills", str(tmp_path / "k.json"), "--write", str(tmp_path / "no" / "k.md")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_spec_that_kills_nothing_alone_says_why_it_stays() -> None:
    runs = [run("a", "x/one"), run("b", "x/one"), run("b", "x/two")]
    text = kills.markdown(runs, {"x/two": "Another road.", "x/one": ""})
    assert text.endswith("| x/one | `a` |\n| x/two | Another road. |\n")


# ---- the published matrix


def published(head: tuple[str, ...] = kills.HEAD) -> dict[str, dict[str, str]]:
    """The rows of mutants by name, of the table with this head."""
    table = DOCUMENT.read_text().partition(f"| {' | '.join(head)} |\n")[2].partition("\n\n")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines()[1:]]
    return {row[0].strip(" `"): dict(zip(head, map(str.strip, row), strict=True)) for row in rows}


def test_the_published_matrix_has_every_fault_as_the_engine_tells_it() -> None:
    known = {name: [f.bug_class, f.symptom, ", ".join(f.breaks)] for name, f in faults.known().items()}
    wanted = ("class", "what a user would see", "breaks")
    assert {name: [row[w] for w in wanted] for name, row in published().items()} == known


def test_the_published_matrix_names_the_specs_that_claim_each_fault() -> None:
    claims: dict[str, list[str]] = {}
    for spec in (load(path).spec for path in spec_files(SPECS)):
        for name in spec.kills:
            claims.setdefault(name, []).append(spec.id)
    told = {name: row["claimed by"] for name, row in published().items()}
    assert told == {name: ", ".join(sorted(ids)) for name, ids in claims.items()}


def test_in_the_published_matrix_every_fault_is_killed() -> None:
    alive = {name: row["fate"] for name, row in published().items() if row["fate"] != "killed"}
    assert alive == {}


def test_the_published_matrix_says_of_every_fault_what_the_explorer_made_of_it() -> None:
    rows = published(kills.HUNTED)
    assert rows.keys() == faults.known().keys()
    unfound = {name: row["by, or why not"] for name, row in rows.items() if row["found after"] == "not found"}
    assert unfound == BEYOND
    after = [int(row["found after"]) for name, row in rows.items() if name not in BEYOND]
    assert max(after) <= 500


def only_killers() -> set[str]:
    """Specs that are the only killer of some fault."""
    named = (re.findall(r"\(([^)]*)\)", row["killed by"]) for row in published().values())
    killers = [{id_ for group in groups for id_ in group.split(", ")} for groups in named]
    return {next(iter(ids)) for ids in killers if len(ids) == 1}


def test_every_spec_is_the_only_killer_of_a_fault_or_says_why_it_stays() -> None:
    specs = {spec.id: spec.stays for spec in (load(path).spec for path in spec_files(SPECS))}
    assert set(specs) - only_killers() == {id_ for id_, stays in specs.items() if stays}


def test_the_published_matrix_says_why_each_spec_stays() -> None:
    specs = {spec.id: spec.stays for spec in (load(path).spec for path in spec_files(SPECS))}
    text = DOCUMENT.read_text().partition("## By spec")[2].partition("\n## ")[0]
    rows = dict(
        line.strip("| ").split(" | ", 1) for line in text.splitlines() if "/" in line.partition(" | ")[0]
    )
    assert rows.keys() == specs.keys()
    assert all(rows[id_] == stays for id_, stays in specs.items() if stays)


def test_every_class_has_three_faults() -> None:
    classes = [fault.bug_class for fault in faults.known().values()]
    expected = {f"C{n:02}" for n in range(1, 24)} - {"C17", "C22"}
    assert {c for c in classes if classes.count(c) >= 3} == expected

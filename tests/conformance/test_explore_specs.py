"""What is made up is a spec: it validates, stays within what the target can, and is written readably."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.catalogue import KnownFault
from conformance.explore.__main__ import main
from conformance.explore.hunt import Failure
from conformance.explore.script import Json, spec_of
from conformance.explore.strategies import workloads
from conformance.explore.write import pruned, text_of, written
from conformance.exploring import ExploreItem, Hunting
from conformance.history import Facts
from conformance.load import load
from conformance.permission import needed
from conformance.spec import Expect
from conformance.verdict import Status, Verdict

OURS = Facts(
    dialect="engine", name="e", how="engine", block=32, granule=32, chunk=256, pool_blocks=4096,
    sharing="all", shares_in_flight=True, grade="bits", has_salt=True, has_chat=True, has_abort=True,
    has_test=True,
    has_reset=True, renders=True, adapters=["a", "b"],
    can=["temperature", "seed", "n", "stop", "repetition_penalty", "presence_penalty", "prompt_logprobs"],
)  # fmt: skip
YOURS = Facts(
    dialect="generic", name="g", how="endpoint", grade="decided", can=["temperature", "seed", "stop"]
)
TIGHT = ("default", "tight", "collide", "overcommit")


@pytest.mark.parametrize(("facts", "profiles"), [(OURS, TIGHT), (YOURS, ("default",))])
def test_every_workload_is_a_valid_spec(tmp_path: Path, facts: Facts, profiles: tuple[str, ...]) -> None:
    path = tmp_path / "found.yaml"

    @settings(
        max_examples=15,
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(workloads(facts, profiles))
    def each(data: Json) -> None:
        path.write_text(text_of(data), encoding="utf-8")
        assert load(path).spec.steps == spec_of(data).steps

    each()


@settings(max_examples=60, database=None, deadline=None, derandomize=True)
@given(workloads(YOURS, ("default",), ()))
def test_what_a_server_need_not_bear_is_not_asked_of_it(data: Json) -> None:
    assert not needed(spec_of(data))
    assert not any(word in step for step in data["steps"] for word in ("hold", "fail"))


@given(st.data())
@settings(max_examples=30, database=None, deadline=None, derandomize=True)
def test_profiles_are_those_that_were_offered(data: st.DataObject) -> None:
    assert "serve" not in data.draw(workloads(OURS))


DATA: Json = {
    "spec": 1, "id": "explored/found", "title": "t", "proves": ["count/1", "count/4", "life/1"],
    "steps": [
        {"wait": "idle"}, {"mark": "m1"}, {"send": "one", "prompt": [{"unique": 5}]}, {"wait": "idle"},
        {"mark": "m2"}, {"wait": "idle"}, {"mark": "m3"},
    ],
    "expect": [{"counted": {"of": "one"}}, {"balanced": {"at": "m3"}},
               {"released": {"before": "m1", "after": "m2"}}],
}  # fmt: skip
BALANCED = Expect(judge="balanced", args={"at": "m3"}, requirement="count/4", id="balanced")
ACCUSED = [(BALANCED, Verdict(Status.FAIL, "count/4", witness="1 + 1 = 3"))]


def test_what_only_others_needed_is_left_out() -> None:
    small = pruned(DATA, ACCUSED)
    assert small["expect"] == [{"balanced": {"at": "m3"}}]
    assert small["proves"] == ["count/4"]
    assert [step["mark"] for step in small["steps"] if "mark" in step] == ["m3"]
    assert small["steps"].count({"wait": "idle"}) == 2


def test_a_failure_becomes_a_file_that_says_what_failed(tmp_path: Path) -> None:
    path = written(tmp_path, Failure(pruned(DATA, ACCUSED), ACCUSED), ["Found on e"])
    text = path.read_text(encoding="utf-8")
    assert "# Found on e\n# balanced (count/4) said fail: 1 + 1 = 3\n" in text
    assert load(path).spec.id == f"explored/{path.stem}"
    assert path == written(tmp_path, Failure(pruned(DATA, ACCUSED), ACCUSED), ["Found on e"])


# ---- the command


def told(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    status = main([*args, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_fault_is_found_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = told(capsys, "50", "--fault", "cached_counts_as_free", "--out", str(tmp_path))
    assert status == 1
    assert [failed["requirement"] for failed in found["failed"]] == ["count/4"]
    assert found["alarms"] == []
    assert [e.judge for e in load(Path(found["file"])).spec.expect] == ["balanced"]


def test_the_healthy_engine_gives_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = told(capsys, "25", "--out", str(tmp_path), "--seed", "3")
    assert (status, found["failed"], found["errors"], list(tmp_path.iterdir())) == (0, [], [], [])
    assert found["examples"] == 25
    assert found["statuses"]["pass"] > 25


def test_without_json_it_is_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["40", "--fault", "count_hits_twice", "--out", str(tmp_path)]) == 1
    assert "FAILED hits_counted (count/3)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--fault", "none_such"], "unknown fault 'none_such'"),
        (["--engine-args", "--chunk 33"], "--chunk"),
        (["--endpoint", "http://127.0.0.1:9"], "nothing answers"),
        (["--serve", "server"], "{port}"),
    ],
)
def test_what_cannot_be_is_one_line(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["5", *args]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


# ---- the items

FAULT = KnownFault(name="f", bug_class="C1", symptom="It lies.", breaks=("out/1",), needs="", lacks="")
NUMERIC = FAULT.model_copy(update={"needs": "openblas"})


def test_the_hunt_is_asked_for_in_a_process_of_its_own() -> None:
    command = Hunting(7, 3, None, engine_args=("--chunk", "64")).command(FAULT)
    assert command[1:] == [
        "-m", "conformance.explore", "7", "--json", "--seed", "3", "--seconds", "600",
        "--engine-args", "--chunk 64", "--fault", "f",
    ]  # fmt: skip


def test_a_numeric_fault_gets_numbers_and_a_minute() -> None:
    command = Hunting(7, 3, None).command(NUMERIC)
    assert command[command.index("--seconds") + 1] == "60"
    assert "--model tiny --blas auto" in command
    assert Hunting(7, 3, 9.0).limit(NUMERIC) == 9.0


def test_items_are_one_for_the_target_or_one_for_each_fault(request: pytest.FixtureRequest) -> None:
    parent = request.node.parent
    assert [i.name for i in ExploreItem.each(parent, Hunting(1, 0, None))] == ["explore"]
    assert [i.name for i in ExploreItem.each(parent, Hunting(1, 0, None, (FAULT,)))] == ["explore[f]"]

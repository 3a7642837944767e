"""A run performs each workload once, goes on over whatever breaks, and judges a history to equal verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from conformance.baseline import Baseline, Comparison
from conformance.history import NotClaimed
from conformance.judges import JUDGES, Judge
from conformance.load import Loaded, load
from conformance.plan import Unobservable
from conformance.session import Options, Session
from conformance.spec import Serve, Strict
from conformance.verdict import Status, Verdict
from tests.conformance.fakeback import CASE, FACTS, Back, Broken, Target


@pytest.fixture
def back() -> Back:
    return Back()


@pytest.fixture
def start(tmp_path: Path, back: Back) -> Iterator[Callable[..., Session]]:
    """A session on the fake back; closed at the end."""
    made: list[Session] = []

    def session(
        judges: Mapping[str, Judge] = JUDGES, told: list[str] | None = None, **options: Any
    ) -> Session:
        known: dict[str, Any] = {
            "history": tmp_path / f"history{len(made)}.jsonl",
            "scale": "ci",
            "run_salt": "r",
        }
        tell = told.append if told is not None else lambda line: None
        made.append(Session(Options(**known | options), back, tell, judges=judges))
        return made[-1]

    yield session
    for one in made:
        one.close()


def loaded(folder: Path, text: str = CASE) -> Loaded:
    path = folder / "case.yaml"
    path.write_text(text)
    return load(path)


def ruled(session: Session, case: Loaded) -> Verdict:
    return session.verdict(case, "", case.spec.expect[0])


def judged_by(rule: Callable[..., Verdict]) -> dict[str, Judge]:
    class Args(Strict):
        of: str

    return {"counted": Judge("counted", "count/1", Args, lambda args: frozenset({args.of}), rule, "")}


def test_every_arm_is_performed_and_the_main_one_gets_solos(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    session = start(judges=judged_by(lambda args, workload, asked: Verdict(Status.PASS, asked)))
    assert ruled(session, loaded(tmp_path)).status is Status.PASS
    assert back.events == [
        "open",
        *("serve default", "run main", "solos 8", "end default"),
        *("serve cold", "run cold", "end cold"),
    ]


def test_a_case_is_performed_again_and_again_beside_the_one_that_is_judged(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    session, case = start(), loaded(tmp_path)
    found = [session.repeat(case, number) for number in range(3)]
    assert [workload.rung for workload in found] == ["", "repeat-1", "repeat-2"]
    assert back.events.count("run main") == 3


def test_what_is_compared_stands_in_the_history(tmp_path: Path, start: Callable[..., Session]) -> None:
    told = Comparison(
        name="mine",
        scale="ci",
        recorded=Baseline(server="x", scale="ci", machine={}, noise=1, repeats={}, scenarios={}),
    )
    session, case = start(baseline=told), loaded(tmp_path)
    assert session.workload(case, "").baseline == told.model_dump(exclude_none=True)
    path = session.options.history
    session.close()
    replayed = start(how="replay", replay=(path,))
    assert replayed.workload(case, "").baseline == told.model_dump(exclude_none=True)


def test_a_case_may_get_a_process_of_its_own(
    tmp_path: Path, back: Back, start: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Serve] = []
    serve = back.for_serve

    def noted(how: Serve) -> AbstractContextManager[Target]:
        served.append(how)
        return serve(how)

    monkeypatch.setattr(back, "for_serve", noted)
    case = loaded(tmp_path)
    start(fresh=frozenset({"area/case"})).workload(case, "")
    start().workload(case, "")
    assert [how.fresh for how in served if how.profile == "default"] == [True, False]


def test_a_workload_runs_once_for_all_expectations(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    session, case = start(), loaded(tmp_path)
    first, second = session.workload(case, ""), session.workload(case, "")
    assert first is second
    assert back.events.count("run main") == 1


def test_the_judge_gets_its_arguments_and_the_recorded_facts(
    tmp_path: Path, start: Callable[..., Session]
) -> None:
    def rule(args: Any, workload: Any, requirement: str) -> Verdict:
        return Verdict(
            Status.PASS, requirement, f"{args.of} {len(workload.of(args.of))} {workload.facts['main'].name}"
        )

    assert ruled(start(judges=judged_by(rule)), loaded(tmp_path)).expected == "eight 8 fake"


def test_a_judge_that_crashes_gives_error(tmp_path: Path, start: Callable[..., Session]) -> None:
    def crash(*args: Any) -> Verdict:
        raise KeyError("x")

    verdict = ruled(start(judges=judged_by(crash)), loaded(tmp_path))
    assert (verdict.status, verdict.reason) == (Status.ERROR, "the judge counted crashed: KeyError: 'x'")


def test_a_workload_that_stopped_before_the_judged_step_ended_is_an_error(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    back.trouble_after = "eight"
    case = loaded(tmp_path, CASE.replace("  - burst", "  - mark: before\n  - burst"))
    back.trouble_after = "before"
    verdict = ruled(start(), case)
    assert (verdict.status, verdict.reason) == (Status.ERROR, "the server is gone")


def test_a_workload_that_stopped_later_is_still_judged(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    back.trouble_after = "eight"
    passed = judged_by(lambda args, workload, asked: Verdict(Status.PASS, asked))
    assert ruled(start(judges=passed), loaded(tmp_path)).status is Status.PASS


def test_an_error_over_failed_requests_says_why_they_failed(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    back.trouble_after = "eight"
    back.outcomes = lambda request: {"error": "connection closed", "status": None}
    verdict = ruled(start(), loaded(tmp_path))
    assert verdict.status is Status.ERROR
    assert (verdict.reason, verdict.notes) == ("eight[0] failed: connection closed", ("the server is gone",))


def test_what_the_target_lacks_is_unobservable(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    back.serve_error = Unobservable("no profile cold")
    verdict = ruled(start(), loaded(tmp_path))
    assert (verdict.status, verdict.reason) == (Status.UNOBSERVABLE, "no profile cold")


def test_a_length_that_cannot_be_is_an_error_at_its_place(
    tmp_path: Path, start: Callable[..., Session]
) -> None:
    verdict = ruled(start(), loaded(tmp_path, CASE.replace("tokens: 4B", "tokens: B-8")))
    assert verdict.status is Status.ERROR
    assert "case.yaml:6:20: 'B-8' is 0 tokens on this target" in verdict.reason


def test_an_unreachable_target_is_tried_once(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    back.open_error = Broken("nothing answers")
    session, case = start(), loaded(tmp_path)
    other = loaded(tmp_path, CASE.replace("area/case", "area/other"))
    verdicts = [ruled(session, case), ruled(session, other)]
    assert [(v.status, v.reason) for v in verdicts] == [(Status.ERROR, "nothing answers")] * 2
    assert back.events == ["open"]
    assert session.dead == "nothing answers"


def test_a_server_that_fails_in_one_profile_does_not_end_the_run(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    session = start()
    back.serve_error = Broken("cannot start")
    assert (
        ruled(session, loaded(tmp_path, CASE.replace("steps:", "serve: {fresh: true}\nsteps:"))).reason
        == "cannot start"
    )
    back.serve_error = None
    assert session.dead is None
    assert ruled(session, loaded(tmp_path, CASE.replace("area/case", "area/other"))).status is Status.PASS


def test_a_defect_of_the_harness_is_an_error_and_not_the_end(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    def defect(request: Any) -> dict[str, Any]:
        raise IndexError("oops")

    back.outcomes = defect
    verdict = ruled(start(), loaded(tmp_path))
    assert verdict.status is Status.ERROR
    assert verdict.reason.startswith("the harness failed: IndexError: oops (test_session.py:")


def test_a_history_that_cannot_be_written_is_named(tmp_path: Path, start: Callable[..., Session]) -> None:
    (tmp_path / "file").write_text("")
    verdict = ruled(start(history=tmp_path / "file" / "h.jsonl"), loaded(tmp_path))
    assert (verdict.status, "cannot write the history" in verdict.reason) == (Status.ERROR, True)


def test_the_target_is_told_once(tmp_path: Path, start: Callable[..., Session]) -> None:
    told: list[str] = []
    session = start(told=told)
    ruled(session, loaded(tmp_path))
    ruled(session, loaded(tmp_path, CASE.replace("area/case", "area/other")))
    assert len(told) == 1
    assert "fake" in told[0]


def test_closing_ends_the_servers_and_may_be_repeated(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    session = start()
    ruled(session, loaded(tmp_path))
    session.close()
    session.close()
    assert back.events.count("close") == 1


def test_a_claim_with_a_reason_is_not_judged(
    tmp_path: Path, start: Callable[..., Session], back: Back
) -> None:
    back.facts = FACTS.model_copy(update={"claims": {"count/1": NotClaimed(reason="by design")}})
    back.outcomes = lambda request: {"cached": 99}
    verdict = ruled(start(), loaded(tmp_path))
    assert (verdict.status, verdict.reason) == (Status.NOT_CLAIMED, "by design")


def record(folder: Path, start: Callable[..., Session]) -> tuple[Loaded, Path, Verdict]:
    session, case = start(), loaded(folder)
    verdict = ruled(session, case)
    session.close()
    return case, session.options.history, verdict


def test_a_replay_gives_the_same_verdict_without_a_server(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    case, history, verdict = record(tmp_path, start)
    back.open_error = AssertionError("a replay contacts nothing")
    session = start(how="replay", replay=(history,))
    assert verdict.status is Status.PASS
    assert ruled(session, case) == verdict
    assert session.history_of(case.spec, "") == history


def test_an_edited_count_turns_the_replay_to_fail(tmp_path: Path, start: Callable[..., Session]) -> None:
    case, history, _ = record(tmp_path, start)
    history.write_text(history.read_text().replace('"cached":16', '"cached":34'))
    assert ruled(start(how="replay", replay=(history,)), case).status is Status.FAIL


def test_a_history_without_the_case_is_not_run(tmp_path: Path, start: Callable[..., Session]) -> None:
    _, history, _ = record(tmp_path, start)
    other = loaded(tmp_path, CASE.replace("area/case", "area/other"))
    verdict = ruled(start(how="replay", replay=(history,)), other)
    assert (verdict.status, verdict.reason) == (Status.NOT_RUN, "the history holds no run of this case")


def test_what_a_replay_does_not_hold_belongs_to_no_other_file(
    tmp_path: Path, start: Callable[..., Session]
) -> None:
    _, history, _ = record(tmp_path, start)
    other = loaded(tmp_path, CASE.replace("area/case", "area/other"))
    assert start(how="replay", replay=(history,)).history_of(other.spec, "") == history


def test_a_history_of_other_steps_is_an_error(tmp_path: Path, start: Callable[..., Session]) -> None:
    _, history, _ = record(tmp_path, start)
    changed = loaded(tmp_path, CASE.replace("unique: 3", "unique: 4"))
    verdict = ruled(start(how="replay", replay=(history,)), changed)
    assert verdict.status is Status.ERROR
    assert "steps changed since this history was recorded" in verdict.reason


def test_a_history_cut_off_in_the_workload_is_an_error(tmp_path: Path, start: Callable[..., Session]) -> None:
    case, history, _ = record(tmp_path, start)
    lines = history.read_text().splitlines(keepends=True)
    span = next(i for i, line in enumerate(lines) if json.loads(line)["event"] == "span")
    history.write_text("".join(lines[:span]))
    verdict = ruled(start(how="replay", replay=(history,)), case)
    assert (verdict.status, verdict.reason) == (Status.ERROR, "the history ends before this workload did")


def test_what_could_not_run_stays_so_in_the_replay(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    back.open_error = Broken("nothing answers")
    case, history, verdict = record(tmp_path, start)
    again = ruled(start(how="replay", replay=(history,)), case)
    assert (again.status, again.reason) == (verdict.status, verdict.reason)


class Snapshot:
    """Stands for syrupy's fixture: holds nothing, writes nothing."""

    update_snapshots = update_new_snapshots_only = False


GOLDEN = CASE.replace("counted: {of: eight}", "golden: {of: eight}").replace("count/1", "out/1")


def golden(session: Session, folder: Path) -> Verdict:
    case = loaded(folder, GOLDEN)
    return session.verdict(case, "", case.spec.expect[0], Snapshot())


def compared(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Golden files that were asked for; every comparison passes."""
    seen: list[Path] = []

    def compare(snapshot: Any, path: Path, *rest: Any) -> Verdict:
        seen.append(path)
        return Verdict(Status.PASS, "out/1")

    monkeypatch.setattr("conformance.session.compare", compare)
    return seen


def test_a_golden_of_the_engine_is_looked_for_under_its_model(
    tmp_path: Path, start: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = compared(monkeypatch)
    assert golden(start(), tmp_path).status is Status.PASS
    assert seen[0].parts[-3:] == ("tiny.granule-8", "area", "case.ci.json")


def test_a_golden_nobody_reviewed_is_not_run(tmp_path: Path, start: Callable[..., Session]) -> None:
    verdict = golden(start(), tmp_path)
    assert (verdict.status, "--snapshot-update writes it" in verdict.reason) == (Status.NOT_RUN, True)


def test_a_foreign_target_needs_a_name_for_its_goldens(
    tmp_path: Path, start: Callable[..., Session], back: Back
) -> None:
    back.facts = FACTS.model_copy(update={"how": "endpoint"})
    assert "no area" not in golden(start(), tmp_path).reason
    named = golden(start(golden="mine"), tmp_path)
    assert (named.status, named.reason) == (
        Status.NOT_RUN,
        "no mine/area/case.ci.json; --snapshot-update writes it",
    )


def test_a_golden_name_that_is_no_folder_is_named(tmp_path: Path, start: Callable[..., Session]) -> None:
    verdict = golden(start(golden="../up"), tmp_path)
    assert (verdict.status, "may hold only a-z" in verdict.reason) == (Status.NOT_RUN, True)


def test_a_replayed_golden_is_that_of_the_recorded_scale(
    tmp_path: Path, start: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start()
    golden(first, tmp_path)
    first.close()
    seen = compared(monkeypatch)
    golden(start(how="replay", replay=(first.options.history,), scale="full"), tmp_path)
    assert seen[0].name == "case.ci.json"


LEAVES = CASE.replace(
    "prompt: [system, {unique: 3}]", "prompt: [system, {unique: 3}]\n    leave: {phase: decoding}"
)


@pytest.mark.parametrize(
    ("how", "allow", "status"),
    [("endpoint", (), "unobservable"), ("endpoint", ("disconnect",), "pass"), ("serve", (), "pass")],
)
def test_clients_walk_away_from_an_endpoint_only_when_it_may_bear_that(
    tmp_path: Path, start: Callable[..., Session], back: Back, how: str, allow: tuple[str, ...], status: str
) -> None:
    back.facts = FACTS.model_copy(update={"how": how})
    verdict = ruled(start(allow=frozenset(allow)), loaded(tmp_path, LEAVES))
    assert verdict.status == status
    assert ("--allow disconnect" in verdict.reason) == (status == "unobservable")


@pytest.mark.parametrize(
    ("proves", "several", "status"),
    [
        ("count/1", "a router", "unobservable"),
        ("out/1", "a router", "pass"),
        ("count/1", "", "pass"),
    ],
)
def test_behind_several_caches_only_what_is_not_about_reuse_is_judged(
    tmp_path: Path, start: Callable[..., Session], back: Back, proves: str, several: str, status: str
) -> None:
    back.facts = FACTS.model_copy(update={"several_caches": several})
    session = start(judges=judged_by(lambda args, workload, asked: Verdict(Status.PASS, asked)))
    text = CASE.replace("[count/1]", f"[{proves}]").replace("{of: eight}", f"{{of: eight, as: {proves}}}")
    verdict = ruled(session, loaded(tmp_path, text))
    assert verdict.status == status
    assert verdict.reason == (several if status == "unobservable" else "")


def test_an_interrupted_workload_is_no_whole_one_for_a_replay(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    def interrupt(request: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    back.outcomes = interrupt
    session, case = start(), loaded(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        ruled(session, case)
    session.close()
    verdict = ruled(start(how="replay", replay=(session.options.history,)), case)
    assert (verdict.status, verdict.reason) == (Status.ERROR, "the run was interrupted")


def test_prompts_that_differ_in_every_run_have_no_golden(
    tmp_path: Path, back: Back, start: Callable[..., Session]
) -> None:
    back.facts = FACTS.model_copy(update={"how": "endpoint", "has_salt": False})
    verdict = golden(start(golden="mine"), tmp_path)
    assert verdict.status is Status.NOT_RUN
    assert "there is nothing fixed to review" in verdict.reason


def test_a_replay_holds_few_workloads_at_a_time(tmp_path: Path, start: Callable[..., Session]) -> None:
    cases = []
    for name in ("a", "b", "c"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(CASE.replace("area/case", f"area/{name}"))
        cases.append(load(path))
    first = start()
    assert all(ruled(first, case).status is Status.PASS for case in cases)
    again = start(how="replay", replay=(first.options.history,))
    assert all(ruled(again, case).status is Status.PASS for case in [*cases, *cases])
    assert [again.known(case.spec, "") is not None for case in cases] == [False, True, True]


@pytest.mark.parametrize(
    ("requirement", "always", "measured"),
    [("count/1", False, False), ("count/1", True, True), ("foot/1", False, True)],
)
def test_memory_is_measured_where_a_judge_of_it_asks_or_in_every_case(
    tmp_path: Path, back: Back, start: Callable[..., Session], requirement: str, always: bool, measured: bool
) -> None:
    session = start(
        memory=always, judges=judged_by(lambda args, workload, asked: Verdict(Status.PASS, asked))
    )
    text = CASE.replace("[count/1]", f"[{requirement}]").replace(
        "{of: eight}", f"{{of: eight, as: {requirement}}}"
    )
    assert ruled(session, loaded(tmp_path, text)).status is Status.PASS
    assert set(back.measured) == {measured}

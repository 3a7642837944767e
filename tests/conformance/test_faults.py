"""`--faults`: which items there are, and what each fate of a fault becomes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from conformance import backend, catalogue, faults, kills
from conformance.catalogue import KnownFault
from tests.conformance.fakeback import CASE, Back

PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
KILLS = CASE.replace("proves:", "kills: [lies]\nproves:")


def fault(name: str = "lies", needs: str = "", lacks: str = "", breaks: str = "count/1") -> KnownFault:
    return KnownFault(
        name=name, bug_class="C10", symptom="Counts lie.", breaks=(breaks,), needs=needs, lacks=lacks
    )


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Which faults the backends were opened with; an engine that `lies` counts more than there is."""
    seen: list[str | None] = []

    def make(options: object) -> Back:
        name = getattr(options, "fault", None)
        seen.append(name)
        return lying() if name == "lies" else Back()

    monkeypatch.setattr(backend, "Backend", make)
    know(monkeypatch, fault())
    return seen


def know(monkeypatch: pytest.MonkeyPatch, *known: KnownFault) -> None:
    monkeypatch.setattr(faults, "known", lambda: {fault.name: fault for fault in known})


def run(pytester: pytest.Pytester, *args: str, text: str = KILLS) -> pytest.RunResult:
    path = pytester.path / "specs" / "area" / "case.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return pytester.runpytest_inprocess(*PLAIN, "specs", *args)


def test_a_killed_fault_passes_beside_the_healthy_engine(
    pytester: pytest.Pytester, opened: list[str | None]
) -> None:
    result = run(pytester, "--faults", "all")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["lies  C10  killed * by count/1 (area/case)", "faults: 1 of 1 killed*"])
    assert opened == [None, "lies"]


def test_each_fault_writes_a_history_of_its_own(pytester: pytest.Pytester, opened: list[str | None]) -> None:
    run(pytester, "--faults", "lies", "--history", "h.jsonl")
    assert sorted(path.name for path in Path(pytester.path).glob("*.jsonl")) == [
        "h-lies-area-case.jsonl",
        "h.jsonl",
    ]


def test_a_survivor_fails_and_says_what_was_seen(
    pytester: pytest.Pytester, opened: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, fault("quiet"))
    result = run(pytester, "--faults", "quiet", text=KILLS.replace("[lies]", "[quiet]"))
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["fault quiet: survived", "*symptom   Counts lie."])


def test_a_spec_that_claims_no_fault_is_left_out(pytester: pytest.Pytester, opened: list[str | None]) -> None:
    result = run(pytester, "--faults", "all", text=CASE)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert opened == [None]


@pytest.mark.parametrize(("asked", "broken"), [("lies", 0), ("all", 1), ("lies,quiet", 1)])
def test_a_few_faults_leave_unread_what_does_not_name_them(
    pytester: pytest.Pytester,
    opened: list[str | None],
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    broken: int,
) -> None:
    """A run with every fault reads every file, so that a misspelt claim is told."""
    know(monkeypatch, fault(), fault("quiet"))
    other = pytester.path / "specs" / "area" / "other.yaml"
    other.parent.mkdir(parents=True)
    other.write_text(KILLS.replace("[lies]", "[leis]"))
    run(pytester, "--faults", asked).assert_outcomes(passed=2, failed=broken)


def test_a_file_that_names_a_fault_and_cannot_be_read_as_a_spec_is_told(
    pytester: pytest.Pytester, opened: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, fault(), fault("quiet"))
    result = run(pytester, "--faults", "lies", text=KILLS + "\n  oops: [")
    result.assert_outcomes(failed=1)


def test_what_the_machine_lacks_is_a_skip_with_the_reason(
    pytester: pytest.Pytester, opened: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, fault(needs="openblas", lacks="libopenblas.so.0"))
    result = run(pytester, "--faults", "all", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*lies shows only with libopenblas.so.0, which is not installed*"])


def test_a_fault_with_needs_runs_the_healthy_engine_with_the_same_flags_first(
    pytester: pytest.Pytester, opened: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, fault(needs="openblas"))
    run(pytester, "--faults", "all").assert_outcomes(passed=2)
    assert opened == [None, None, "lies"]


def test_a_run_tells_what_each_spec_made_of_each_fault(
    pytester: pytest.Pytester, opened: list[str | None]
) -> None:
    run(pytester, "--faults", "lies", "--report-kills", "kills.json")
    ((found,), _) = kills.from_json((pytester.path / "kills.json").read_text())
    assert (found["fault"], found["spec"], found["claimed"], found["fate"]) == (
        "lies",
        "area/case",
        True,
        "killed",
    )
    assert {cell["requirement"]: cell["status"] for cell in found["cells"]}["count/1"] == "fail"
    assert all(cell["witness"] for cell in found["cells"] if cell["status"] == "fail")


def test_what_is_skipped_is_told_too(
    pytester: pytest.Pytester, opened: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, fault(needs="openblas", lacks="libopenblas.so.0"))
    run(pytester, "--faults", "all", "--report-kills", "kills.json")
    ((found,), _) = kills.from_json((pytester.path / "kills.json").read_text())
    assert (found["fate"], found["cells"]) == ("not-run", [])


def test_cross_runs_quick_specs_that_claim_nothing_and_holds_nothing_against_them(
    pytester: pytest.Pytester, opened: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, fault(), fault("quiet"))
    quick = KILLS.replace("proves:", "quick: true\nproves:")
    result = run(pytester, "--faults", "all", "--cross", text=quick)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["lies * killed *", "quiet * survived *"])
    assert opened == ["lies", "quiet", None] or opened == [None, "lies", "quiet"]


def test_with_cross_the_specs_of_a_fault_share_an_engine(
    pytester: pytest.Pytester, opened: list[str | None]
) -> None:
    second = pytester.path / "specs" / "area" / "second.yaml"
    second.parent.mkdir(parents=True)
    second.write_text(KILLS.replace("area/case", "area/second"))
    result = run(pytester, "--faults", "lies", "--cross")
    result.assert_outcomes(passed=4)
    assert opened.count("lies") == 1


def test_with_cross_the_healthy_engine_of_a_fault_with_needs_stays_beside_it(
    pytester: pytest.Pytester, opened: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To change engines for each spec, back and forth, took five minutes for one fault."""
    know(monkeypatch, fault(needs="openblas"), fault("quiet", needs="openblas"))
    second = pytester.path / "specs" / "area" / "second.yaml"
    second.parent.mkdir(parents=True)
    quick = KILLS.replace("proves:", "quick: true\nproves:")
    second.write_text(quick.replace("area/case", "area/second"))
    run(pytester, "--faults", "all", "--cross", text=quick)
    assert sorted(opened, key=str) == [None, None, "lies", "quiet"]


@pytest.mark.parametrize("flag", [["--cross"], ["--report-kills", "kills.json"]])
def test_what_belongs_to_faults_is_refused_without(pytester: pytest.Pytester, flag: list[str]) -> None:
    result = run(pytester, *flag)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{flag[0]} is for a run with faults*"])


def test_a_control_that_fails_proves_nothing(
    pytester: pytest.Pytester, opened: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, fault(needs="openblas"))
    monkeypatch.setattr(backend, "Backend", lambda options: lying())
    result = run(pytester, "--faults", "all")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["fault lies: error", "*healthy engine fails the same spec*"])


def lying() -> Back:
    back = Back()
    back.outcomes = lambda request: {"cached": 999}
    return back


def test_the_engine_is_asked_for_its_faults() -> None:
    faults.known.cache_clear()
    known = faults.known()
    assert set(known) >= {"consume_on_adopt", "truncate_entry_on_partial_match", "shape_dependent_rows"}
    assert known["consume_on_adopt"].breaks[0] == "adopt/1"


def test_every_fault_that_a_spec_claims_to_kill_is_one_and_none_is_forgotten() -> None:
    from conformance.collect import SPECS
    from conformance.load import load, spec_files

    claimed = {name for path in spec_files(SPECS) for name in load(path).spec.kills}
    assert claimed == set(faults.known())


def test_an_engine_that_does_not_start_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    faults.known.cache_clear()
    gone = subprocess.CompletedProcess([], 1, "", "Traceback\n  line 1\nImportError: no mlx")
    monkeypatch.setattr(subprocess, "run", lambda *args, **how: gone)
    with pytest.raises(pytest.UsageError, match=r"^--faults: .* does not start: ImportError: no mlx$"):
        faults.known()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (OSError("no such file"), "does not start: no such file"),
        (subprocess.TimeoutExpired("engine", 60), "does not start: .* timed out"),
        (subprocess.CompletedProcess([], 1, "", ""), "does not start: it printed nothing"),
        (subprocess.CompletedProcess([], 0, "hello", ""), "lists no faults"),
    ],
)
def test_whatever_the_engine_does_instead_has_a_word(
    monkeypatch: pytest.MonkeyPatch, answer: Any, says: str
) -> None:
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=[answer]))
    with pytest.raises(catalogue.EngineError, match=says):
        catalogue.listed()


def test_a_pair_is_one_engine_with_both_and_caught_by_what_catches_either(
    pytester: pytest.Pytester, opened: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, fault(), fault("quiet"))
    second = pytester.path / "specs" / "area" / "second.yaml"
    second.parent.mkdir(parents=True)
    second.write_text(KILLS.replace("area/case", "area/second").replace("[lies]", "[quiet]"))
    monkeypatch.setattr(backend, "Backend", lambda options: opener(opened, options))
    result = run(pytester, "--faults", "lies+quiet", "--report-kills", "kills.json")
    result.assert_outcomes(passed=4)
    assert opened == [None, "lies+quiet"]
    [mutant] = kills.mutants(kills.from_json((pytester.path / "kills.json").read_text())[0])
    assert (mutant.name, mutant.bug_class, mutant.fate) == ("lies+quiet", "C10+C10", "killed")


def opener(opened: list[str | None], options: Any) -> Back:
    opened.append(options.fault)
    return lying() if options.fault else Back()


def test_a_pair_that_nothing_catches_fails_the_run(
    pytester: pytest.Pytester, opened: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, fault("quiet"), fault("silent"))
    result = run(pytester, "--faults", "quiet+silent", text=KILLS.replace("[lies]", "[quiet]"))
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["quiet+silent  C10+C10  survived*", "faults: 0 of 1 killed*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_pairs_at_random_are_those_of_their_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    know(monkeypatch, *(fault(f"f{i}", needs="openblas" if i == 0 else "") for i in range(6)))
    first, again, other = (faults.choose(asked) for asked in ("pairs:9:1", "pairs:9:1", "pairs:9:2"))
    assert first == again != other
    assert len({pair.name for pair in first}) == 9
    assert all(len(set(pair.names)) == 2 for pair in first)
    assert all((pair.needs == "openblas") is ("f0" in pair.names) for pair in first)


@pytest.mark.parametrize("asked", ["pairs:", "pairs:0", "pairs:16", "pairs:x", "pairs:3:x", "pairs:-1"])
def test_pairs_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    know(monkeypatch, *(fault(f"f{i}") for i in range(6)))
    with pytest.raises(pytest.UsageError, match="with N from 1 to 15"):
        faults.choose(asked)


def test_an_unknown_one_of_a_pair_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    know(monkeypatch, fault())
    with pytest.raises(pytest.UsageError, match=r"--faults lie: no fault of that name; did you mean lies"):
        faults.choose("lies+lie")

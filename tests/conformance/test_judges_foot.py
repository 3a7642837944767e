"""foot/1 on hand-made workloads: two arms' peaks, and a peak against a recorded one."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.history import Workload
from conformance.verdict import Status, Verdict
from tests.conformance.builders import MIB, burst, facts, judge, memory, seed, span, workload


def arms(
    main: float, other: float, cached: int = 192, there: int = 0, samples: int = 20, idle: float = 100
) -> Workload:
    """A burst of two with a peak of `main` MiB, and the same of `other` MiB in the arm without sharing."""
    made = workload(seed(), *burst([cached] * 2, step="two"), arms={"apart": facts()})
    made.outcomes += burst([there] * 2, step="two", arm="apart")
    for arm, peak in (("main", main), ("apart", other)):
        made.spans.append(span("two", 10, 12, arm=arm))
        made.memory.append(memory(9, idle, "wait", arm))
        made.memory += [memory(10 + i / 20, peak - i, "two", arm) for i in range(samples)]
    return made


def within(made: Workload, **args: Any) -> Verdict:
    return judge("footprint_within", made, of="two", control="apart", apart_mib=150, **args)


def test_sharing_saves_what_it_must() -> None:
    verdict = within(arms(200, 350))
    assert verdict.status is Status.PASS
    assert verdict.observed == (
        "main  idle 100 MiB  peak 200 MiB  20 samples",
        "apart  idle 100 MiB  peak 350 MiB  20 samples",
    )
    assert verdict.notes == ("the arms are 150 MiB apart",)


def test_arms_too_close_fail() -> None:
    verdict = within(arms(201, 350))
    assert verdict.status is Status.FAIL
    assert verdict.witness.startswith(
        "384 prompt tokens are reported as reused, which must save at least 150 MiB"
    )


def test_a_sharing_arm_above_the_other_fails() -> None:
    verdict = within(arms(400, 350))
    assert verdict.witness == "the sharing arm's peak is 50 MiB above that of the no-sharing arm"


def test_above_within_the_noise_is_not_above() -> None:
    verdict = judge("footprint_within", arms(366, 350), of="two", control="apart")
    assert (verdict.status, verdict.expected) == (
        Status.PASS,
        "peak of two at most that of the arm apart plus 16 MiB",
    )
    assert judge("footprint_within", arms(367, 350), of="two", control="apart").status is Status.FAIL


def test_arms_too_close_without_reuse_are_vacuous() -> None:
    verdict = within(arms(340, 350, cached=0))
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "no request of 'two' reports a hit, so nothing was due to be saved",
    )


def test_a_control_that_shares_is_inconclusive() -> None:
    verdict = within(arms(200, 350, there=96))
    assert (verdict.status, verdict.reason) == (
        Status.INCONCLUSIVE,
        "the arm 'apart' reports 192 cached tokens, so it shares as well",
    )


def test_growth_within_the_noise_is_vacuous() -> None:
    verdict = within(arms(100, 132))
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "the no-sharing arm grew by 32 MiB, not more than twice the noise of 16 MiB",
    )


def test_too_few_samples_are_vacuous() -> None:
    verdict = within(arms(200, 350, samples=19))
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "19 footprint readings during 'two' of the arm 'main', not 20",
    )


def test_a_process_that_is_not_known_is_unobservable() -> None:
    made = arms(200, 350)
    made.memory.clear()
    assert within(made).status is Status.UNOBSERVABLE


def test_readings_without_a_phase_are_vacuous() -> None:
    made = arms(200, 350)
    made.spans.clear()
    assert within(made).status is Status.VACUOUS


def test_without_a_reading_before_the_phase_the_lowest_is_idle() -> None:
    made = arms(200, 350)
    made.memory = [m for m in made.memory if m.step == "two"]
    assert within(made).observed[0] == "main  idle 181 MiB  peak 200 MiB  20 samples"


def half(made: Workload, **args: Any) -> Verdict:
    """At least half of what the reported reuse was due to save."""
    return judge("footprint_within", made, of="two", control="apart", apart_percent=50, **args)


def test_a_part_of_what_reuse_was_due_to_save_is_enough() -> None:
    # The control grew by 280 MiB, 192 of 224 prompt tokens are reported as reused: 240 MiB are due.
    verdict = half(arms(260, 380))
    assert (verdict.status, verdict.expected) == (
        Status.PASS,
        "peak of two at least 120 MiB below that of the arm apart",
    )
    assert half(arms(261, 380)).status is Status.FAIL


def test_adoption_by_copying_fails() -> None:
    verdict = half(arms(372, 380))
    assert (verdict.status, verdict.witness) == (
        Status.FAIL,
        "384 prompt tokens are reported as reused, which must save at least 120 MiB, but the peaks are only "
        "8 MiB apart: what was reported as shared takes memory of its own",
    )


def test_a_part_that_drowns_in_the_noise_is_vacuous() -> None:
    # 40 MiB grown, 34 due, half of that is about the noise.
    verdict = half(arms(140, 140), noise_mib=19)
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "the no-sharing arm grew by 40 MiB, and 17 MiB less of it could not be told from the noise of 19 MiB",
    )


def test_no_reported_reuse_is_vacuous_for_a_part_too() -> None:
    verdict = half(arms(380, 380, cached=0))
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "no request of 'two' reports a hit, so nothing was due to be saved",
    )


def test_a_stray_token_of_a_head_is_no_sharing() -> None:
    # 22 of 448 prompt tokens are less than one in twenty.
    assert half(arms(200, 380, there=11)).status is Status.PASS
    assert half(arms(200, 380, there=12)).status is Status.INCONCLUSIVE


def test_memory_on_a_gpu_is_shown_and_not_added() -> None:
    made = arms(200, 350)
    made.memory = [m.model_copy(update={"device": 900 * MIB}) for m in made.memory]
    verdict = within(made)
    assert verdict.status is Status.PASS
    assert verdict.observed[0] == "main  idle 100 MiB  peak 200 MiB  20 samples  on GPUs 900 MiB"


MACHINE = {"system": "Linux", "machine": "x86_64", "cores": "2", "memory_mib": "24000"}


def recorded(peak: int, noise: int = 10, **changes: Any) -> dict[str, Any]:
    """A run's baseline in which the step `two` of test/case peaked at so many MiB."""
    phases = {"idle": 100 * MIB, "peak": peak * MIB, "after": peak * MIB, "settled": 100 * MIB, "samples": 30}
    told = {
        "server": "conformance-engine",
        "scale": "ci",
        "machine": MACHINE,
        "noise": noise * MIB,
        "repeats": {"idle": [1], "burst": [1]},
        "scenarios": {"test/case": {**phases, "steps": {"two": peak * MIB}}},
    }
    return {"name": "mine", "scale": "ci", "recorded": told | changes}


def against(baseline: dict[str, Any] | None, **told: Any) -> Verdict:
    made = workload(seed(), *burst([192] * 2, step="two"), facts=facts(**({"machine": MACHINE} | told)))
    made.spans.append(span("two", 10, 12))
    made.memory = [memory(9, 100, "wait"), *(memory(10 + i / 20, 200, "two") for i in range(20))]
    made.baseline = baseline
    return judge("within_baseline", made, of="two")


def test_a_peak_within_the_recorded_one_and_its_noise_passes() -> None:
    verdict = against(recorded(190))
    assert (verdict.status, verdict.expected) == (
        Status.PASS,
        "peak of two at most the recorded 190 MiB plus 10 MiB of noise",
    )
    assert verdict.observed == (
        "main  idle 100 MiB  peak 200 MiB  20 samples",
        "mine  idle 100 MiB  peak 190 MiB",
    )


def test_a_peak_above_it_fails() -> None:
    verdict = against(recorded(189))
    assert (verdict.status, verdict.witness) == (
        Status.FAIL,
        "the peak is 11 MiB above the recorded one, 10 MiB are noise",
    )


def test_without_a_baseline_nothing_is_compared() -> None:
    verdict = against(None)
    assert verdict.status is Status.NOT_RUN
    assert "--record-baseline NAME" in verdict.reason


@pytest.mark.parametrize(
    ("changes", "told", "reason"),
    [
        ({"machine": MACHINE | {"cores": "8"}}, {}, "cores '8', not '2'"),
        ({"machine": MACHINE | {"memory_mib": "48000"}}, {}, "memory '47 GiB', not '23 GiB'"),
        ({"server": "other"}, {}, "server 'other', not 'conformance-engine'"),
        ({"model": "big"}, {"model": "small"}, "model 'big', not 'small'"),
        ({"scale": "full"}, {}, "scale 'full', not 'ci'"),
    ],
)
def test_a_baseline_of_another_run_is_inconclusive(
    changes: dict[str, Any], told: dict[str, Any], reason: str
) -> None:
    given = recorded(190, **changes)
    verdict = against(given, **told)
    assert (verdict.status, verdict.reason) == (
        Status.INCONCLUSIVE,
        f"the baseline 'mine' is of another run: {reason}",
    )
    assert against(given | {"any_machine": True}, **told).status is Status.PASS


def test_a_little_less_memory_is_the_same_machine() -> None:
    assert against(recorded(190, machine=MACHINE | {"memory_mib": "24010"})).status is Status.PASS


def test_a_baseline_without_the_step_is_unobservable() -> None:
    verdict = against(recorded(190, scenarios={}))
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "the baseline 'mine' holds no 'two'",
    )


def test_a_server_that_ran_before_is_not_compared() -> None:
    assert against(recorded(190), how="endpoint").status is Status.UNOBSERVABLE


def test_noise_is_that_of_the_baseline() -> None:
    made = arms(366, 350)
    made.facts["main"] = facts(machine=MACHINE)
    made.baseline = recorded(0, noise=5)
    assert judge("footprint_within", made, of="two", control="apart").status is Status.FAIL
    made.baseline = recorded(0, noise=5, machine=MACHINE | {"cores": "8"})
    assert judge("footprint_within", made, of="two", control="apart").status is Status.PASS

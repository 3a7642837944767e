"""evict/5 to evict/8 on hand-made workloads: B = G = 32, prompts of 224 ids, replies of 8 tokens."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.history import Facts, Outcome, Workload
from conformance.verdict import Status, Verdict
from tests.conformance.builders import ask, facts, judge, reply, sample, solo, span, suffix, workload

POOL = 10


def small(**changes: Any) -> Facts:
    return facts(**{"pool_blocks": POOL, "bytes_per_block": 1000, **changes})


def cold(step: str, index: int | None = None, count: int = 224) -> Any:
    return ask(step, suffix(index or 0, count), index, salt=step)


# ---- evict/5: within the budget


def budget(tokens: int = 400, target: Facts | None = None, **values: float) -> Verdict:
    told = {"live": 10.0, "total": 10.0, "bytes_in_use": 10_000.0, "bytes_budget": 10_000.0} | values
    made = workload(
        reply(cold("strangers", 0), 0, 1),
        sample(0.5, "strangers", **{name: value for name, value in told.items() if value >= 0}),
        span("strangers", 0, 1, "churn", tokens=tokens, requests=1),
        facts=target or small(),
    )
    return judge("in_budget", made, churn="strangers")


def test_a_cache_that_fills_its_budget_passes() -> None:
    verdict = budget()
    assert verdict.status is Status.PASS
    assert verdict.observed == ("bytes_in_use  at most 10000 of 10000", "live  at most 10 of 10")


@pytest.mark.parametrize(("gauge", "value", "over"), [("live", 11.0, 1), ("bytes_in_use", 12_000.0, 2000)])
def test_a_cache_that_grows_over_its_budget_fails(gauge: str, value: float, over: int) -> None:
    told: dict[str, Any] = {gauge: value}
    verdict = budget(**told)
    assert verdict.status is Status.FAIL
    assert f"{gauge} is {value:g} at 0.500 s (during strangers), {over} over the declared" in verdict.witness


def test_no_declared_budget_is_unobservable() -> None:
    assert budget(total=-1, bytes_in_use=-1).status is Status.UNOBSERVABLE


def test_less_than_a_pool_is_vacuous() -> None:
    assert budget(tokens=320).reason == "320 tokens passed, which a pool of 320 can bear"


# ---- evict/5: repeats


def repeats(
    grew: float = 34, count: int = 35, cached: int = 192, target: Facts | None = None, gauge: str = "live",
    other: bool = False, late: float = 0,
) -> Verdict:  # fmt: skip
    plans = [ask("more", suffix(0, 224 + (other and i == 3)), i) for i in range(count)]
    made = workload(
        sample(1, "five", **{gauge: 20.0}),
        *[reply(plan, 2 + i, 2.5 + i + late, cached=cached) for i, plan in enumerate(plans)],
        sample(99, "forty", **{gauge: 20 + grew}),
        facts=target or small(),
    )
    return judge("no_growth", made, of="more", since="five", until="forty")


def test_repeats_that_add_less_than_a_block_each_pass() -> None:
    verdict = repeats()
    assert (verdict.status, verdict.observed) == (Status.PASS, ("live  +34 over 35 repeats: 34 blocks",))


def test_repeats_that_are_stored_again_fail() -> None:
    verdict = repeats(70)
    assert (verdict.status, verdict.request) == (Status.FAIL, "more[34]")
    assert verdict.witness == (
        "35 repeats of one prompt added 70 blocks, 2.00 each: every repeat was stored once more"
    )


def test_bytes_tell_as_well_as_blocks() -> None:
    assert repeats(34_999, gauge="bytes_in_use").status is Status.PASS
    assert repeats(35_000, gauge="bytes_in_use").status is Status.FAIL
    unsized = repeats(0, gauge="bytes_in_use", target=small(bytes_per_block=None))
    assert unsized.reason == "the target does not tell the size of a block"
    assert repeats(gauge="free").status is Status.UNOBSERVABLE


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"count": 34, "grew": 0}, "34 repeats, 35 are asked for"),
        ({"cached": 0}, "no repeat hits, so a cache that is off would pass"),
        ({"late": 70}, "not all of 'more' ran between 'five' and 'forty'"),
        ({"other": True}, "'more' does not send one prompt again and again"),
    ],
)
def test_what_is_no_repetition_is_vacuous(how: dict[str, Any], reason: str) -> None:
    verdict = repeats(**how)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, reason)


# ---- evict/6: the end of every request


def pressed(count: int = 2, took: float = 16, pool: int = POOL, apart: float = 0, **last: Any) -> Workload:
    """Requests of eight blocks; alone each takes a second, so that sixteen are allowed for two."""
    plans = [cold("six", i) for i in range(count)]
    got = [reply(plan, i * apart, i * apart + took) for i, plan in enumerate(plans)]
    got[-1] = got[-1].model_copy(update=last)
    solos = {plan.key: [solo(plan), solo(plan)] for plan in plans}
    return workload(*got, facts=small(pool_blocks=pool), solos=solos)


def all_end(made: Workload) -> Verdict:
    return judge("all_end", made, of="six")


def test_requests_that_all_end_in_time_pass() -> None:
    verdict = all_end(pressed())
    assert verdict.status is Status.PASS
    assert verdict.expected == "each ends within 3 x 2.000 s alone + 10 s = 16.000 s"


def test_a_refusal_is_an_end_too() -> None:
    assert all_end(pressed(status=503, error="no room", rejected=True)).status is Status.PASS


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"timed_out": True}, "timeout"),
        ({"status": 500, "error": "out of blocks"}, "error, out of blocks"),
        ({"error": "the stream was cut"}, "error, the stream was cut"),
    ],
)
def test_a_request_without_an_end_fails(how: dict[str, Any], said: str) -> None:
    verdict = all_end(pressed(**how))
    assert (verdict.status, verdict.request) == (Status.FAIL, "six[1]")
    assert verdict.witness.startswith(f"six[1] came to neither a reply nor a refusal: {said}")


def test_a_request_that_ends_late_fails() -> None:
    verdict = all_end(pressed(took=16.1))
    assert verdict.witness == "six[0] took 16.100 s, over the bound of 16.000 s"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"pool": 16}, "'six' needs 16 blocks, which a pool of 16 can bear"),
        ({"apart": 16}, "the requests of 'six' were not in flight together"),
    ],
)
def test_no_pressure_is_vacuous(how: dict[str, Any], reason: str) -> None:
    verdict = all_end(pressed(**how))
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, reason)


def test_without_solo_times_the_end_is_unobservable() -> None:
    made = pressed()
    made.solos.clear()
    assert all_end(made).status is Status.UNOBSERVABLE


# ---- evict/6: what can never fit

NO = {"status": 400, "error": "too long", "rejected": True, "first": None}


def too_long(took: float = 2, count: int = 321, alone: float = 0.1, **how: Any) -> Verdict:
    made = workload(
        reply(cold("ordinary"), 0, alone),
        reply(cold("long", 0, count), 10, 10 + took, **(NO | how)),
        facts=small(),
    )
    return judge("refused_at_once", made, of="long", control="ordinary")


def test_a_refusal_at_once() -> None:
    assert too_long().status is Status.PASS
    assert too_long(3, alone=1.0).status is Status.PASS


def test_a_refusal_that_comes_late_fails() -> None:
    verdict = too_long(2.1)
    assert verdict.witness == "long[0] was refused after 2.100 s, over the bound of 2.000 s"


@pytest.mark.parametrize(
    "how", [{"status": 500, "rejected": False}, {"status": 200, "error": None, "rejected": False}]
)
def test_anything_but_a_refusal_fails(how: dict[str, Any]) -> None:
    verdict = too_long(**how)
    assert (verdict.status, verdict.request) == (Status.FAIL, "long[0]")
    assert verdict.witness.startswith("long[0], which can never fit, was not refused")


def test_a_prompt_that_fits_is_vacuous() -> None:
    assert too_long(count=320).reason == "long[0] is not known to exceed the pool of 320 tokens"


# ---- evict/7


def resumed(rose: float | None = 1, **last: Any) -> Verdict:
    plans = [cold("four", i) for i in range(2)]
    got: list[Outcome] = [reply(plan, 2, 5, trace={"preemptions": 1}) for plan in plans]
    got[-1] = got[-1].model_copy(update=last)
    told = {} if rose is None else {"preemptions": rose}
    before = {} if rose is None else {"preemptions": 0.0}
    made = workload(
        sample(1, "before", **before, live=1),
        *got,
        sample(9, "after", **told, live=1),
        solos={plan.key: [solo(plan), solo(plan)] for plan in plans},
    )
    return judge("resumed", made, of="four", since="before", until="after")


def test_a_request_that_was_preempted_goes_on() -> None:
    verdict = resumed()
    assert verdict.status is Status.PASS
    assert verdict.observed[1] == "four[1]  prompt 224  completion 8  preempted 1 times"
    assert resumed(trace=None).observed[1].endswith("preempted unknown")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"token_ids": [100, 101, 101, 102, 103, 104, 105, 106, 107]},
            "9 tokens of four[1] came, alone 8: they part at token 2",
        ),
        ({"token_ids": [*range(100, 107)]}, "7 tokens of four[1] came, alone 8: they part at token 7"),
        ({"completion_tokens": 9}, "four[1] reports completion_tokens 9, alone 8"),
        ({"prompt_tokens": 230}, "four[1] reports prompt_tokens 230, alone 224"),
        ({"token_ids": [7] * 8}, "four[1] (without reported reuse) parts from its solo run"),
        ({"cached": 32}, "four[1] reports 32 cached tokens, where others had stored at most 0 of its prompt"),
    ],
)
def test_a_seam_in_a_reply_fails(how: dict[str, Any], said: str) -> None:
    verdict = resumed(**how)
    assert (verdict.status, verdict.request) == (Status.FAIL, "four[1]")
    assert verdict.witness.startswith(said)


def test_no_preemption_is_vacuous_and_no_counter_unobservable() -> None:
    assert resumed(0).reason == "no request was preempted"
    assert resumed(None).status is Status.UNOBSERVABLE


# ---- evict/8

LEFT = {"left": "prefilling", "first": None, "error": "left", "token_ids": None}
FAILED = {"status": 500, "error": "the model failed", "first": None, "token_ids": None}


def broken(
    how: dict[str, Any] = LEFT, written: float | None = 96, cached: int = 96, between: bool = False,
    **again: Any,
) -> Verdict:  # fmt: skip
    first, second = cold("left"), cold("left").model_copy(update={"id": "again", "step": "again"})
    told = {} if written is None else {"computed_tokens": 100.0}
    later = {} if written is None else {"computed_tokens": 100 + written}
    other = reply(cold("other"), 3, 4)
    made = workload(
        sample(1, "before", **told, live=1),
        reply(first, 2, 2.5, **how),
        *([other] if between else []),
        sample(5, "after", **later, live=1),
        reply(second, 6, 7, **({"cached": cached} | again)),
        solos={second.key: [solo(second), solo(second)]},
    )
    return judge("written_only", made, broken="left", again="again")


@pytest.mark.parametrize("how", [LEFT, FAILED])
def test_what_was_written_may_be_adopted(how: dict[str, Any]) -> None:
    verdict = broken(how)
    assert verdict.status is Status.PASS
    assert verdict.observed == ("left ended after 96 tokens, again adopts 96",)


@pytest.mark.parametrize("how", [LEFT, FAILED])
def test_what_was_not_written_must_not_be_adopted(how: dict[str, Any]) -> None:
    verdict = broken(how, cached=128)
    assert (verdict.status, verdict.request) == (Status.FAIL, "again")
    assert verdict.witness.startswith("again adopts 128 cached tokens, but left, which sent the same prompt")


def test_another_reply_after_a_broken_prefill_fails() -> None:
    assert broken(token_ids=[7] * 8).status is Status.FAIL


def test_without_a_counter_the_reply_alone_is_judged() -> None:
    verdict = broken(written=None, cached=192)
    assert verdict.status is Status.PASS
    assert verdict.observed == ("left ended after an unknown number of tokens, again adopts 192",)
    assert broken(written=None, token_ids=[7] * 8).status is Status.FAIL


RIGHT_BEFORE = "no request of 'left' ended in mid-prefill right before its repeat"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"how": LEFT | {"left": "decoding"}}, RIGHT_BEFORE),
        ({"how": FAILED | {"rejected": True}}, RIGHT_BEFORE),
        ({"between": True}, RIGHT_BEFORE),
        ({"written": 224}, "no request of 'left' ended with a part of its prompt written"),
        ({"written": 0, "cached": 0}, "no request of 'left' ended with a part of its prompt written"),
    ],
)
def test_a_prefill_that_did_not_break_off_is_vacuous(how: dict[str, Any], reason: str) -> None:
    verdict = broken(**how)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, reason)

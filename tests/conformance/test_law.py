"""The law of cached counts, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.history import Outcome, Workload
from conformance.law import (
    Lawful,
    LawUnknownError,
    common_prefix,
    generated_length,
    lawful,
    prompt_length,
    shared_prefix,
    text_tokens,
)
from tests.conformance.builders import PREFIX, ask, burst, facts, reply, seed, span, suffix, workload

IDS = st.lists(st.integers(0, 2), max_size=20)


def after_seed(*ids: int, made: Workload | None = None, **changes: object) -> Lawful:
    """The law of a request with these ids, sent after the seed ended."""
    request = reply(ask("again", ids), 5, 6, **changes)
    whole = made or workload(seed())
    whole.outcomes.append(request)
    return lawful(whole, request)


@given(IDS, IDS)
def test_common_prefix_is_the_longest_one(a: list[int], b: list[int]) -> None:
    length = common_prefix(a, b)
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]


def test_a_stored_prefix_is_floored_to_the_granule() -> None:
    law = after_seed(*PREFIX, *suffix(1))
    assert (law.low, law.high, law.lcp.low, law.lcp.source) == (192, 192, 200, "seed")


def test_the_last_prompt_token_is_never_cached() -> None:
    # 192 = 6 * 32 ids are shared and nothing else is asked: at most 191 may come from the cache, so 160.
    assert after_seed(*PREFIX[:192]).high == 160


def test_one_more_token_frees_the_whole_block() -> None:
    assert after_seed(*PREFIX[:193]).low == 192


def test_partial_reuse_raises_only_the_upper_bound() -> None:
    law = after_seed(*PREFIX, *suffix(1), made=workload(seed(), facts=facts(partial_reuse=True)))
    assert (law.low, law.high) == (192, 200)
    assert law.allows(195)


def test_counts_between_the_bounds_are_multiples_of_the_granule() -> None:
    peers = burst([0, 96])
    law = lawful(workload(*peers), peers[1])
    assert (law.low, law.high) == (0, 192)
    assert law.allows(96)
    assert not law.allows(95)


def test_below_the_minimum_prefix_nothing_is_due_or_allowed() -> None:
    law = after_seed(*PREFIX, *suffix(1), made=workload(seed(), facts=facts(min_prefix=193)))
    assert (law.low, law.high) == (0, 0)


def test_at_the_minimum_prefix_it_is() -> None:
    assert after_seed(*PREFIX, *suffix(1), made=workload(seed(), facts=facts(min_prefix=192))).low == 192


def test_without_a_granule_nothing_is_due() -> None:
    law = after_seed(*PREFIX, *suffix(1), made=workload(seed(), facts=facts(granule=None)))
    assert (law.low, law.high) == (0, 200)


def test_another_salt_shares_nothing() -> None:
    other = reply(ask("other", [*PREFIX, *suffix(1)], salt="private"), 5, 6)
    assert lawful(workload(seed(), other), other).high == 0


def test_without_salts_everything_is_one_identity() -> None:
    other = reply(ask("other", [*PREFIX, *suffix(1)], salt="private"), 5, 6)
    assert lawful(workload(seed(), other, facts=facts(has_salt=False)), other).low == 192


def test_another_arm_is_another_process() -> None:
    there = seed(arm="cold")
    assert after_seed(*PREFIX, *suffix(1), made=workload(there, arms={"cold": facts()})).high == 0


def test_a_peer_in_flight_counts_for_the_upper_bound_only() -> None:
    peers = burst([0, 192])
    assert str(lawful(workload(*peers), peers[0])) == "0..192"


def test_a_request_sent_after_the_end_counts_for_nothing() -> None:
    law = after_seed(*PREFIX, *suffix(1), made=workload(seed(sent=7, ended=8)))
    assert (law.low, law.high) == (0, 0)


@pytest.mark.parametrize(
    "change", [{"status": 500}, {"error": "cut"}, {"timed_out": True}, {"left": "decoding"}]
)
def test_a_request_that_did_not_finish_well_is_not_certainly_stored(change: dict[str, object]) -> None:
    law = after_seed(*PREFIX, *suffix(1), made=workload(seed(**change)))
    assert (law.low, law.high) == (0, 192)


def test_an_entry_counts_once_the_target_has_settled() -> None:
    prompt = [*PREFIX, *suffix(1)]
    assert after_seed(*prompt, made=workload(seed(), facts=facts(settle=4.0))).low == 192
    assert after_seed(*prompt, made=workload(seed(), facts=facts(settle=4.1))).low == 0


def test_nothing_is_certain_after_a_reset() -> None:
    made = workload(seed(), span("reset-2", 2, 3, kind="reset"))
    assert after_seed(*PREFIX, *suffix(1), made=made).low == 0


def test_work_begun_before_a_reset_stores_nothing_for_certain() -> None:
    made = workload(seed(sent=1, ended=3), span("reset-2", 1.5, 2, kind="reset"))
    assert after_seed(*PREFIX, *suffix(1), made=made).low == 0


def test_a_reset_before_the_entry_changes_nothing() -> None:
    made = workload(seed(sent=2, ended=3), span("start", 0, 1, kind="reset"))
    assert after_seed(*PREFIX, *suffix(1), made=made).low == 192


def next_turn(last: Outcome) -> tuple[int, ...]:
    return (*(last.plan.prompt_ids or []), *(last.token_ids or []), *suffix(2))


def test_generated_tokens_are_due_where_declared() -> None:
    # 217 prompt ids and 8 generated ones, of which the last was never fed back: 224 are stored, 7 blocks.
    last = reply(ask("turn", [*PREFIX, *suffix(99, 17)]), 0, 1)
    law = after_seed(*next_turn(last), made=workload(last))
    assert (law.lcp.low, law.low) == (224, 224)


def test_generated_tokens_are_only_allowed_where_not_declared() -> None:
    last = reply(ask("turn", [*PREFIX, *suffix(99, 17)]), 0, 1)
    law = after_seed(*next_turn(last), made=workload(last, facts=facts(generated_reusable=False)))
    assert (law.lcp.low, law.lcp.high, law.low, law.high) == (217, 225, 192, 224)


def test_a_reply_without_ids_may_continue_in_any_way() -> None:
    last = seed(token_ids=None, completion_tokens=30)
    law = after_seed(*(last.plan.prompt_ids or []), *range(40), made=workload(last))
    assert (law.lcp.low, law.lcp.high) == (216, 246)


def test_text_is_measured_by_its_share_of_the_prompt() -> None:
    first = reply(ask("first", "a" * 80 + "b" * 20), 0, 1)
    again = reply(ask("again", "a" * 80 + "c" * 20), 2, 3, prompt_tokens=50)
    law = lawful(workload(first, again, facts=facts(granule=1, lcp_slack=2)), again)
    assert (law.lcp.low, law.lcp.high) == (38, 42)


def test_a_reply_in_text_continues_its_prompt() -> None:
    first = reply(ask("first", "a" * 10), 0, 1, text="x" * 10)
    again = reply(ask("again", "a" * 10 + "x" * 10), 2, 3, prompt_tokens=40)
    law = lawful(workload(first, again, facts=facts(granule=1, generated_reusable=False)), again)
    assert (law.lcp.low, law.lcp.high, law.high) == (20, 40, 39)


@pytest.mark.parametrize(
    ("shared", "slack", "bounds"),
    [(0, 0, (0, 0)), (0, 3, (0, 3)), (10, 0, (3, 4)), (30, 9, (10, 10)), (29, 9, (0, 10))],
)
def test_characters_become_tokens(shared: int, slack: int, bounds: tuple[int, int]) -> None:
    assert text_tokens(shared, 30, 10, slack) == bounds


def test_ids_and_text_share_nothing_that_can_be_known() -> None:
    text = reply(ask("text", "abc"), 5, 6)
    assert lawful(workload(seed(), text), text).high == 0


def test_a_text_of_unknown_length_has_no_law() -> None:
    text = reply(ask("text", "abc"), 5, 6, prompt_tokens=None)
    with pytest.raises(LawUnknownError, match=r"text: no ids were sent and usage\.prompt_tokens is absent"):
        lawful(workload(text), text)


def test_the_prompt_is_as_long_as_what_was_sent() -> None:
    assert prompt_length(seed(prompt_tokens=7)) == 216


@pytest.mark.parametrize(
    ("change", "length"),
    [({}, 8), ({"token_ids": None}, 8), ({"token_ids": None, "completion_tokens": None}, 0)],
)
def test_a_reply_is_as_long_as_its_ids(change: dict[str, object], length: int) -> None:
    assert generated_length(seed(**change)) == length


def test_the_shared_prefix_of_a_burst_is_what_all_begin_with() -> None:
    peers = burst([0, 0, 0])
    assert shared_prefix(workload(*peers), peers) == 200


def test_arithmetic_can_be_read() -> None:
    law = after_seed(*PREFIX, *suffix(1))
    assert law.low_arithmetic == "floor(min(LCP 200, n - 1 = 223) / 32) * 32 = 192"


def test_arithmetic_in_tokens_has_no_floor() -> None:
    law = after_seed(*PREFIX, *suffix(1), made=workload(seed(), facts=facts(granule=1)))
    assert law.high_arithmetic == "min(LCP 200, n - 1 = 223) = 200"


@pytest.mark.parametrize(("salted", "granule", "high"), [(False, 1, 4), (False, 32, 0), (True, 1, 0)])
def test_heads_of_other_workloads_may_begin_alike(salted: bool, granule: int, high: int) -> None:
    alone = reply(ask("alone", list(range(100, 200))), 5, 6)
    made = workload(alone, facts=facts(has_salt=salted, granule=granule))
    assert (lawful(made, alone).low, lawful(made, alone).high) == (0, high)

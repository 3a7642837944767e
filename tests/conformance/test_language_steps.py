"""What steps can do, shown on the bundled engine: in the background, in rounds, again, and to the engine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from conformance.history import Workload
from conformance.judges.base import Case
from tests.conformance.demo import Engine, demo_engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with demo_engine(tmp_path_factory.mktemp("demo")) as running:
        yield running


def case(workload: Workload) -> Case:
    assert workload.trouble is None
    assert workload.unobservable is None
    return Case(workload, "count/1")


def test_a_started_request_goes_on_while_others_run(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - hold: decoding
            after: 8
          - start: long
            prompt: [system]
            max_tokens: 30
          - when: {request: long, phase: decoding, tokens: 4}
          - send: short
            prompt: [{unique: 2G}]
            max_tokens: 2
          - hold: "off"
          - join: long
        """,
        "long",
    )
    assert case(seen).reached("long")
    [long], [short] = case(seen).requests("long"), case(seen).requests("short")
    assert long.sent < short.sent < short.ended < long.ended
    assert len(long.token_ids or []) == 30
    span = seen.span("long")
    assert span is not None
    assert span.kind == "start"
    assert span.start <= long.sent < long.ended <= span.end


def test_a_request_that_ends_first_was_not_there(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - start: short
            prompt: [system]
            max_tokens: 1B/16
          - when: {request: short, phase: decoding, tokens: 100}
        """,
        "short",
    )
    assert not case(seen).reached("short")
    assert len(case(seen).requests("short")) == 1


def test_nothing_waited_for_is_nothing_reached(engine: Engine) -> None:
    seen = engine.run("steps:\n  - send: one\n    prompt: [system]", "one")
    assert not case(seen).reached("one")


@pytest.mark.parametrize("phase", ["queued", "prefilling", "decoding"])
def test_held_requests_stand_in_their_phase(engine: Engine, phase: str) -> None:
    seen = engine.run(
        f"""
        steps:
          - hold: {phase}
            after: 1
          - start: held
            requests: 2
            prompt: [{{unique: 2C}}]
            max_tokens: 4
          - when: {{request: held, phase: {phase}}}
          - mark: during
          - hold: "off"
          - join: held
        """,
        "held",
    )
    assert case(seen).reached("held")
    assert len(case(seen).requests("held")) == 2
    gauge = "waiting" if phase == "queued" else "running"
    assert case(seen).gauge(gauge, "during") == 2


def test_a_hold_that_is_forgotten_is_let_go_at_the_end(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - hold: queued
          - start: held
            prompt: [system]
        """,
        "held",
    )
    assert len(case(seen).requests("held")) == 1


def test_a_forward_fails_and_only_its_request(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - fail: broken
            forward: prefill
          - send: victim
            prompt: [{unique: 2C}]
          - send: after
            prompt: [{unique: 2C, seed: 1}]
        """,
        "after",
    )
    assert seen.trouble is None
    assert not seen.of("victim")[0].ok
    assert len(case(seen).requests("after")) == 1
    assert case(seen).detail("broken")["done"] is True


def test_an_overwritten_block_is_noticed(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - send: seed
            prompt: [system, {unique: 4}]
          - send: borrower
            prompt: [system, {unique: 4}]
          - overwrite: spoilt
            block_of: borrower
          - send: after
            prompt: [system, {unique: 4}]
          - reset: true
        """,
        "after",
    )
    [borrower], [after] = case(seen).requests("borrower"), case(seen).requests("after")
    assert borrower.cached == after.cached == 128
    assert borrower.logprobs != after.logprobs
    assert case(seen).detail("spoilt")["done"] is True


def test_a_burst_of_different_requests_is_found_by_every_name(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - burst: mixed
            max_tokens: 3
            each:
              - name: warm
                requests: 2
                prompt: [system, {unique: 4}]
              - name: cold
                prompt: [{unique: 2G}]
                salt: private
                max_tokens: 5
              - prompt: [{unique: 8}]
          - send: next
            prompt: [{repeat_of: cold}, {reply_of: cold}]
        """,
        "mixed",
    )
    assert [o.id for o in case(seen).requests("mixed")] == ["warm[0]", "warm[1]", "cold", "mixed[3]"]
    assert [o.id for o in case(seen).requests("warm")] == ["warm[0]", "warm[1]"]
    [cold] = case(seen).requests("cold")
    assert (cold.plan.group, cold.plan.max_tokens, cold.index) == ("mixed", 5, 2)
    assert {o.plan.max_tokens for o in case(seen).requests("warm")} == {3}
    [span] = seen.spans_of("cold")
    assert (span.step, span.detail["requests"]) == ("mixed", 4)
    assert len(case(seen).requests("next")) == 1


def test_a_staggered_burst_is_sent_in_steps(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - burst: row
            requests: 3
            stagger: 0.1
            prompt: [{unique: 8}]
            max_tokens: 2
        """,
        "row",
    )
    span = seen.span("row")
    assert span is not None
    # However busy the machine is, none is sent before its time.
    early = [o.sent - (span.start + 0.1 * o.index) for o in case(seen).requests("row")]
    assert min(early) >= 0
    assert "spread" in span.detail


def test_a_loop_counts_on_and_differs_in_every_round(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - loop: 3
            steps:
              - burst: pair
                requests: 2
                prompt: [system, {unique: 4}]
                max_tokens: 2
              - start: one
                prompt: [{unique: 8, seed: 1}]
                max_tokens: 2
              - send: copy
                prompt: [{repeat_of: one}]
                max_tokens: 2
              - join: one
        """,
        "pair",
    )
    pairs = case(seen).requests("pair")
    assert [o.index for o in pairs] == list(range(6))
    assert len({tuple(o.plan.prompt_ids or []) for o in pairs}) == 6
    assert [span.detail["round"] for span in seen.spans_of("pair")] == [0, 1, 2]
    ones, copies = case(seen).requests("one"), case(seen).requests("copy")
    assert [o.plan.prompt_ids for o in ones] == [o.plan.prompt_ids for o in copies]


def test_the_very_requests_are_sent_again(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - burst: pair
            requests: 2
            prompt: [{unique: 4G}]
            max_tokens: 3
          - repeat: again
            of: pair
            times: 2
            stream: false
          - repeat: crowd
            of: pair
            at_once: true
        """,
        "again",
    )
    pair, again, crowd = (case(seen).requests(name) for name in ("pair", "again", "crowd"))
    assert [o.plan.prompt_ids for o in again] == [o.plan.prompt_ids for o in [*pair, *pair]]
    assert [o.plan.salt for o in crowd] == [o.plan.salt for o in pair]
    assert {o.plan.stream for o in again} == {False}
    assert {o.plan.key for o in again}.isdisjoint({o.plan.key for o in pair})
    assert [o.plan.key for o in crowd] == [o.plan.key for o in pair]
    assert [o.token_ids for o in crowd] == [o.token_ids for o in pair]
    assert max(o.sent for o in crowd) < min(o.ended for o in crowd)


def test_a_churn_passes_so_many_tokens(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - churn: noise
            tokens: 1000
            each: 300
        """,
        "noise",
    )
    noise = case(seen).requests("noise")
    assert [len(o.plan.prompt_ids or []) for o in noise] == [300] * 4
    assert {o.cached for o in noise} == {0}
    assert case(seen).detail("noise")["tokens"] == 1200


def test_a_churn_goes_on_until_so_much_was_evicted(engine: Engine) -> None:
    seen = engine.run(
        """
        serve: {profile: tight, fresh: true}
        steps:
          - mark: before
          - churn: noise
            evictions: 20
          - mark: after
        """,
        "noise",
    )
    assert case(seen).delta("evictions", "before", "after") >= 20
    told = case(seen).detail("noise")
    assert 20 <= told["evictions"] < 40
    assert told["tokens"] < 6 * 48 * 32


def test_a_named_reset_tells_what_came_of_it(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - send: before
            prompt: [system]
          - reset: emptied
          - send: after
            prompt: [system]
        """,
        "after",
    )
    told = case(seen).detail("emptied")
    assert (told["done"], told["status"]) == (True, 200)
    assert "cleared" in told["answer"]
    assert [o.cached for o in case(seen).requests("after")] == [0]


def test_arms_run_the_same_steps_otherwise_on_the_same_server(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - burst: three
            requests: 3
            prompt: [system, {unique: 4}]
            max_tokens: 3
        arms:
          slow: {one_by_one: true}
          apart: {salt: private}
          whole: {stream: false}
        """,
        "three",
    )
    assert set(seen.facts) == {"main", "slow", "apart", "whole"}
    main, slow, apart, whole = (seen.of("three", arm) for arm in ("main", "slow", "apart", "whole"))
    assert all(len(arm) == 3 for arm in (main, slow, apart, whole))
    assert all(a.ended <= b.sent for a, b in pairwise(slow))
    assert [o.cached for o in slow] == [0, 128, 128]
    assert {o.cached for o in apart} == {0}
    assert len({o.plan.salt for o in apart}) == 3
    assert [o.first for o in whole] == [None] * 3
    assert len({o.plan.salt for o in [*main, *slow, *whole]}) == 3


@pytest.mark.parametrize("how", ["fin", "half_close", "abort"])
def test_a_ladder_of_words_is_put_where_it_is_used(engine: Engine, how: str) -> None:
    seen = engine.run(
        """
        steps:
          - burst: leavers
            requests: 2
            prompt: [system, {unique: 4}]
            max_tokens: 400
            leave: {how: $how, phase: decoding, tokens: 3}
          - wait: idle
          - mark: after
        """,
        "leavers",
        rung=f"how={how}",
        ladder="{how: [fin, half_close, abort]}",
    )
    leavers = seen.of("leavers")
    assert seen.trouble is None
    assert [(o.plan.leave or {})["how"] for o in leavers] == [how, how]
    assert [o.left for o in leavers] == ["decoding", "decoding"]
    assert case(seen).gauge("running", "after") == 0


@pytest.mark.parametrize(
    ("phase", "held"), [("queued", "queued"), ("prefilling", "prefilling"), ("first_token", "off")]
)
def test_a_client_leaves_in_the_phase_that_is_meant(engine: Engine, phase: str, held: str) -> None:
    seen = engine.run(
        f"""
        steps:
          - send: warmup
            prompt: [{{unique: 2C, seed: 5}}]
          - hold: "{held}"
          - send: leaver
            prompt: [{{unique: 2C}}]
            max_tokens: 64
            leave: {{phase: {phase}}}
          - hold: "off"
          - wait: idle
          - mark: after
        """,
        "leaver",
    )
    assert seen.trouble is None
    assert [o.left for o in seen.of("leaver")] == [phase]
    assert case(seen).mark("after")["running"] == case(seen).mark("after")["waiting"] == 0


def test_a_client_leaves_before_the_last_step(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - hold: decoding
            after: 7
          - start: leaver
            prompt: [{unique: 8}]
            max_tokens: 9
            leave: {phase: last_step}
          - join: leaver
        """,
        "leaver",
    )
    assert [o.left for o in seen.of("leaver")] == ["last_step"]


def test_a_client_that_stops_reading_closes_after_its_time(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - send: sleeper
            prompt: [{unique: 8}]
            max_tokens: 400
            leave: {how: stop_reading, phase: decoding, tokens: 2, seconds: 0.3}
        """,
        "sleeper",
    )
    [sleeper] = seen.of("sleeper")
    assert sleeper.left == "decoding"
    assert sleeper.error is None
    assert sleeper.ended - sleeper.tokens_at[0] > 0.3


def test_a_queued_request_is_aborted_by_its_name(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - hold: queued
          - send: gone
            prompt: [system]
            leave: {how: abort, phase: queued}
          - mark: after
        """,
        "gone",
    )
    [gone] = seen.of("gone")
    assert (gone.left, gone.error, gone.status) == ("queued", None, 409)
    assert case(seen).gauge("waiting", "after") == 0

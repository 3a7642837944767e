"""Sampling of one row: greedy, biased, seeded, and its logprobs."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Request, SamplingParams
from engine.sampling import Sampler, narrowed
from engine.sequence import Sequence

LOGITS = mx.array([0.0, 2.0, 1.0, -1.0])


def sequence(choice: int = 0, generated: int = 0, said: tuple[int, ...] = (), **params: Any) -> Sequence:
    """A sequence whose prompt is token 1; `generated` zeros, or what was `said`, followed it."""
    seq = Sequence(Request("r", (1,), SamplingParams(**params)), choice)
    seq.tokens += said or [0] * generated
    return seq


def adjusted(*said: int, eos: tuple[int, ...] = (), **params: Any) -> list[float]:
    values: list[float] = Sampler(frozenset(eos)).adjust(sequence(said=said, **params), LOGITS).tolist()  # type: ignore[assignment]
    return values


def test_temperature_zero_takes_the_largest() -> None:
    assert Sampler().sample(sequence(), LOGITS).id == 1


def test_bias_moves_the_choice() -> None:
    assert Sampler().sample(sequence(logit_bias={3: 9.0}), LOGITS).id == 3


def test_logprobs_are_normalised_and_in_order() -> None:
    sampled = Sampler().sample(sequence(logprobs=3), LOGITS)
    norm = math.log(sum(math.exp(x) for x in (0.0, 2.0, 1.0, -1.0)))
    assert sampled.logprob == pytest.approx(2.0 - norm, abs=1e-6)
    assert [token for token, _ in sampled.top] == [1, 2, 0]
    assert sampled.top[0][1] == sampled.logprob


def test_no_top_logprobs_unless_asked() -> None:
    assert Sampler().sample(sequence(logprobs=0), LOGITS).top == []
    assert Sampler().sample(sequence(), LOGITS).logprob is None


def test_a_seed_fixes_the_draw_for_each_position_and_choice() -> None:
    def draws(choice: int) -> list[int]:
        flat = mx.zeros(50)
        return [Sampler().sample(sequence(choice, at, temperature=1.0, seed=3), flat).id for at in range(20)]

    assert draws(0) == draws(0)
    assert draws(0) != draws(1)
    assert len(set(draws(0))) > 5


@pytest.mark.parametrize(
    ("said", "params", "logits"),
    [
        ((), {}, [0, 2, 1, -1]),
        ((2,), {"presence_penalty": 0.5}, [0, 2, 0.5, -1]),
        ((2, 2), {"presence_penalty": 0.5}, [0, 2, 0.5, -1]),
        ((2, 2, 0), {"frequency_penalty": 0.25}, [-0.25, 2, 0.5, -1]),
        ((2, 2), {"frequency_penalty": -0.25, "presence_penalty": 1}, [0, 2, 0.5, -1]),
        ((2, 3), {"repetition_penalty": 2.0}, [0, 1, 0.5, -2]),
        ((3, 3), {"repetition_penalty": 0.5}, [0, 4, 1, -0.5]),
        ((2,), {"repetition_penalty": 2.0, "presence_penalty": 0.5, "logit_bias": {2: 4.0}}, [0, 1, 4, -1]),
    ],
)
def test_penalties_and_bias_move_logits(
    said: tuple[int, ...], params: dict[str, Any], logits: list[float]
) -> None:
    """Token 1 is the prompt: only the repetition penalty, which is over everything, moves it unsaid."""
    assert adjusted(*said, **params) == logits


def test_adjusting_leaves_the_given_logits_alone() -> None:
    adjusted(2, eos=(3,), repetition_penalty=2.0, presence_penalty=1, min_tokens=5, logit_bias={0: 1.0})
    assert LOGITS.tolist() == [0, 2, 1, -1]


def test_no_end_of_text_before_min_tokens() -> None:
    assert Sampler(frozenset({1, 2})).sample(sequence(min_tokens=1), LOGITS).id == 0
    assert Sampler(frozenset({1, 2})).sample(sequence(generated=1, min_tokens=1), LOGITS).id == 1
    assert Sampler(frozenset({1, 2})).sample(sequence(min_tokens=1, ignore_eos=True), LOGITS).id == 1


def test_a_held_back_end_of_text_has_a_finite_logprob() -> None:
    sampled = Sampler(frozenset({1})).sample(sequence(min_tokens=1, logprobs=4), LOGITS)
    assert sampled.top[-1][0] == 1
    assert all(math.isfinite(value) for _, value in sampled.top)


@pytest.mark.parametrize("temperature", [1e-300, 1e-6])
def test_a_temperature_that_fp32_cannot_divide_by_is_greedy(temperature: float) -> None:
    sampled = Sampler().sample(sequence(temperature=temperature, seed=1, logprobs=1), LOGITS)
    assert (sampled.id, sampled.top[0][0]) == (1, 1)


def test_a_choice_draws_as_that_choice_alone_with_the_next_seed() -> None:
    flat = mx.zeros(1000)
    drawn = [
        Sampler().sample(sequence(choice, temperature=1.0, seed=seed), flat).id
        for seed, choice in ((3, 2), (4, 1), (5, 0), (6, 0))
    ]
    assert drawn[0] == drawn[1] == drawn[2] != drawn[3]


def test_a_prompt_token_is_scored_by_the_row_before_it() -> None:
    norm = math.log(sum(math.exp(x) for x in (0.0, 2.0, 1.0, -1.0)))
    (token,) = Sampler().score([3], [LOGITS], 1)
    (top,) = token.top
    assert (token.id, top[0]) == (3, 1)
    assert [token.logprob, top[1]] == pytest.approx([-1.0 - norm, 2.0 - norm], abs=1e-6)


# ---- top k, top p, min p


PROBABILITIES = [0.06, 0.2, 0.5, 0.2, 0.04]
EVERY = [0, 1, 2, 3, 4]


def kept(probabilities: list[float], **params: Any) -> list[int]:
    """Ids that may still be drawn."""
    found = narrowed(mx.log(mx.array(probabilities)), SamplingParams(**params)).tolist()
    return [id for id, value in enumerate(found) if value > -math.inf]  # type: ignore[arg-type, operator]


@pytest.mark.parametrize(
    ("params", "ids"),
    [
        ({}, EVERY),
        ({"top_k": -1}, EVERY),
        ({"top_k": 1}, [2]),
        ({"top_k": 3}, [1, 2, 3]),
        ({"top_k": 4}, [0, 1, 2, 3]),
        ({"top_k": 2**31 - 1}, EVERY),
        ({"top_p": 1e-9}, [2]),
        ({"top_p": 5e-324}, [2]),
        ({"top_p": 0.49}, [2]),
        ({"top_p": 0.89}, [1, 2, 3]),
        ({"top_p": 0.95}, [0, 1, 2, 3]),
        ({"top_p": 0.97}, EVERY),
        ({"min_p": 0.07}, EVERY),
        ({"min_p": 0.11}, [0, 1, 2, 3]),
        ({"min_p": 0.39}, [1, 2, 3]),
        ({"min_p": 0.41}, [2]),
        ({"min_p": 1.0}, [2]),
        ({"top_k": 4, "min_p": 0.39}, [1, 2, 3]),
        ({"top_k": 1, "top_p": 0.9, "min_p": 0.01}, [2]),
        ({"top_p": 0.95, "min_p": 0.39}, [1, 2, 3]),
    ],
)
def test_what_may_be_drawn(params: dict[str, Any], ids: list[int]) -> None:
    assert kept(PROBABILITIES, **params) == ids


def test_top_p_is_of_the_mass_that_top_k_left() -> None:
    """Of 0.5 + 0.2 + 0.2 the best has 0.56; of all it has 0.5."""
    assert kept(PROBABILITIES, top_p=0.53) == [1, 2, 3]
    assert kept(PROBABILITIES, top_p=0.53, top_k=3) == [2]


@pytest.mark.parametrize("params", [{"top_k": 2}, {"top_p": 0.6}])
def test_equals_share_their_fate(params: dict[str, Any]) -> None:
    """Either would fill the place that is left, and no sort may decide which."""
    assert kept(PROBABILITIES, **params) == [1, 2, 3]
    assert kept([0.06, 0.21, 0.5, 0.19, 0.04], **params) == [1, 2]


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}])
def test_several_best_all_stay(params: dict[str, Any]) -> None:
    assert kept([0.3, 0.1, 0.3, 0.3], **params) == [0, 2, 3]


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40),
    st.integers(-1, 50),
    st.floats(0, 1, exclude_min=True),
    st.floats(0, 1),
)
def test_the_best_stay_and_whatever_stays_is_better_than_what_goes(
    logits: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    after: list[float] = narrowed(mx.array(logits), params).tolist()  # type: ignore[assignment]
    stay = [before for before, value in zip(logits, after, strict=True) if value == before]
    gone = [before for before, value in zip(logits, after, strict=True) if value == -math.inf]
    assert len(stay) + len(gone) == len(logits)
    assert max(stay) == max(logits)
    assert not gone or min(stay) > max(gone)


def drawn(probabilities: list[float], **params: Any) -> set[int]:
    logits = mx.log(mx.array(probabilities))
    return {Sampler().sample(sequence(seed=seed, **params), logits).id for seed in range(100)}


def test_the_temperature_comes_first() -> None:
    """At temperature 2 the best of 0.6, 0.3 and 0.1 has 0.47 of the mass."""
    assert drawn([0.6, 0.3, 0.1], temperature=1.0, top_p=0.55) == {0}
    assert drawn([0.6, 0.3, 0.1], temperature=2.0, top_p=0.55) == {0, 1}
    assert drawn([0.6, 0.3, 0.1], temperature=2.0) == {0, 1, 2}


def test_penalties_and_bias_come_before_all_that() -> None:
    assert drawn([0.6, 0.3, 0.1], temperature=1.0, top_k=1, logit_bias={2: 5.0}) == {2}


def test_logprobs_are_those_of_all_tokens() -> None:
    sampled = Sampler().sample(sequence(temperature=1.0, seed=1, top_k=1, logprobs=2), LOGITS)
    norm = math.log(sum(math.exp(x) for x in (0.0, 2.0, 1.0, -1.0)))
    assert [value for _, value in sampled.top] == pytest.approx([2.0 - norm, 1.0 - norm], abs=1e-6)


def test_a_greedy_choice_is_not_narrowed() -> None:
    assert Sampler().sample(sequence(top_k=3, top_p=0.1, min_p=0.5), LOGITS).id == 1


def test_a_narrowed_draw_is_fixed_by_seed_choice_and_position() -> None:
    def draws(choice: int, seed: int) -> list[int]:
        params: dict[str, Any] = {"temperature": 1.0, "seed": seed, "top_k": 30, "top_p": 0.9, "min_p": 0.1}
        logits = mx.arange(50) / 50
        return [Sampler().sample(sequence(choice, at, **params), logits).id for at in range(20)]

    assert draws(0, 4) == draws(0, 4) == draws(1, 3)
    assert draws(0, 4) != draws(0, 3)

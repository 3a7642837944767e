"""Sampling of one row: greedy, biased, seeded, and its logprobs."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import pytest

from engine.messages import Request, SamplingParams
from engine.sampling import Sampler
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
    token = Sampler().score(3, LOGITS, 1)
    (top,) = token.top
    assert (token.id, top[0]) == (3, 1)
    assert [token.logprob, top[1]] == pytest.approx([-1.0 - norm, 2.0 - norm], abs=1e-6)

"""Sampling of one row: greedy, biased, seeded, and its logprobs."""

from __future__ import annotations

import math

import mlx.core as mx
import pytest

from engine.messages import Request, SamplingParams
from engine.sampling import Sampler
from engine.sequence import Sequence

LOGITS = mx.array([0.0, 2.0, 1.0, -1.0])


def sequence(choice: int = 0, generated: int = 0, **params: object) -> Sequence:
    seq = Sequence(Request("r", (1,), SamplingParams(**params)), choice)  # type: ignore[arg-type]
    seq.tokens += [0] * generated
    return seq


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

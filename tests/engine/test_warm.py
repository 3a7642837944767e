"""Every way of sampling gives a warm request what it gives a cold one, in company too (out/2, out/4)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from engine.faults import FAULTS
from engine.kvview import ArrayView
from engine.messages import Token
from engine.model import load
from engine.tokenizer import CHAT_END, EOS, ByteTokenizer
from tests.engine.rig import Client, Rig

CODEC = ByteTokenizer()
ENDS = sorted(CODEC.eos_ids)

WAYS: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -1.5},
    "repetition": {"repetition_penalty": 0.1},
    "bias": {"logit_bias": {40: 100.0, 41: 100.0}},
    "min tokens": {"ignore_eos": False, "min_tokens": 3, "logit_bias": dict.fromkeys(ENDS, 2e9)},
    "seeded": {"temperature": 2.0, "seed": 11},
    "top k": {"temperature": 2.0, "seed": 11, "top_k": 5},
    "top p": {"temperature": 1.0, "seed": 11, "top_p": 0.9},
    "min p": {"temperature": 2.0, "seed": 11, "min_p": 0.05},
    "narrowed in every way": {"temperature": 2.0, "seed": 11, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    "penalised and seeded": {
        "temperature": 1.0,
        "seed": 5,
        "presence_penalty": 2.0,
        "repetition_penalty": 1.3,
    },
}


def rig(model: str = "digest", **settings: Any) -> Rig:
    return Rig(model=model, **settings)


def ask(rig: Rig, salt: str = "", company: bool = False, **params: Any) -> Client:
    """One request with its top 3, on a prompt of its own; in company of a cold and a plain warm one."""
    prompt = rig.prompt(18, seed=4)
    client = rig.add(prompt, 8, salt, logprobs=3, **params)
    if company:
        rig.add(rig.prompt(11, seed=9), 8)
        rig.add(prompt, 8, salt)
    rig.drain()
    return client


@pytest.mark.parametrize("model", ["digest", "tiny"])
@pytest.mark.parametrize("way", WAYS)
def test_warm_is_cold_whatever_the_sampling(model: str, way: str) -> None:
    made = rig(model)
    cold, warm = (ask(made, company=later, **WAYS[way]) for later in (False, True))
    assert (cold.cached, warm.cached) == (0, 16)
    assert warm.said() == cold.said()
    assert cold.said() != ask(made).said()


def test_a_warm_request_that_differs_would_be_seen() -> None:
    made = Rig(FAULTS["perturb_logits_when_cached"].parts)
    cold, warm = (ask(made, presence_penalty=1.5) for _ in range(2))
    assert warm.said() != cold.said()


def test_min_tokens_hold_back_the_end_of_text() -> None:
    client = ask(rig(), **WAYS["min tokens"])
    assert [token.id in ENDS for token in client.said()] == [False, False, False, True]


def test_min_tokens_hold_back_stop_strings() -> None:
    made = rig()
    every = tuple(CODEC.token_text(token) for token in ask(made).ids())
    assert len(ask(made, stop=every[:4]).ids()) == 1
    assert len(ask(made, stop=every[:4], min_tokens=3).ids()) == 3


def test_each_choice_is_that_choice_alone_with_the_next_seed() -> None:
    made = rig()
    several = ask(made, n=3, temperature=1.0, seed=20)
    alone = [ask(made, temperature=1.0, seed=20 + choice).ids() for choice in range(3)]
    assert [several.ids(choice) for choice in range(3)] == alone
    assert len({tuple(ids) for ids in alone}) == 3


# ---- logprobs of the prompt


def truth(model: str, prompt: list[int]) -> list[float]:
    """Each prompt token's logprob but the first's, from cold prefills that end just before it."""
    runner, _ = load(model, grid=4)
    found = []
    for stop in range(1, len(prompt)):
        logits = runner.prefill(ArrayView(runner.shape), prompt, 0, stop)
        logprob: float = (logits - mx.logsumexp(logits))[prompt[stop]].item()  # type: ignore[assignment]
        found.append(logprob)
    return found


@pytest.mark.parametrize("model", ["digest", "tiny"])
@pytest.mark.parametrize("storage", ["paged", "dense"])
def test_prompt_logprobs_are_computed_for_real_where_the_prompt_is_stored(model: str, storage: str) -> None:
    made = rig(model, storage=storage)
    cold = ask(made, prompt_logprobs=2)
    assert ask(made).cached == 16
    warm = ask(made, company=True, prompt_logprobs=2)
    assert [token.id for token in warm.prompted] == made.prompt(18, seed=4)
    said = [token.logprob for token in warm.prompted[1:]]
    rounded = 4e-6 if model == "digest" else 0  # of logits up to 16 in fp32, which MLX did not rank
    assert said == pytest.approx(truth(model, made.prompt(18, seed=4)), rel=0, abs=rounded)
    assert (warm.prompted, warm.said(), warm.cached) == (cold.prompted, cold.said(), 0)


def test_the_first_prompt_token_is_predicted_by_nothing() -> None:
    first, second, *_ = ask(rig(), prompt_logprobs=2).prompted
    assert (first.logprob, first.top) == (None, [])
    assert [len(token.top) for token in (second,)] == [2]


def test_a_trace_says_why_prompt_logprobs_adopt_nothing() -> None:
    made = rig()
    ask(made)
    client = made.add(made.prompt(18, seed=4), prompt_logprobs=0)
    live = made.scheduler.live[client.request.id]
    made.drain()
    assert live.trace["missed"] == "prompt_logprobs"


def test_prompt_logprobs_wait_for_nobody_and_store_for_others() -> None:
    made = rig()
    leader = made.add(made.prompt(18, seed=4))
    scorer = made.add(made.prompt(18, seed=4), prompt_logprobs=0)
    made.steps(1)
    assert (leader.cached, scorer.cached) == (0, 0)
    made.drain()
    alone = rig()
    ask(alone, prompt_logprobs=0)
    assert ask(alone).cached == 16


def test_a_prompt_of_one_token_has_one_entry() -> None:
    made = rig()
    (client,) = made.run([40], prompt_logprobs=3)
    assert client.prompted == (Token(0, 40, ""),)


def test_eos_ids_are_the_two_that_end_a_reply() -> None:
    assert sorted(CODEC.id_of(text) for text in (EOS, CHAT_END)) == ENDS

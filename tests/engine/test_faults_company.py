"""Faults of company and of numbers: replies that part from the same request alone, on the engine itself."""

from __future__ import annotations

import pytest

from engine.faults import parts_for
from tests.engine.rig import Client, Rig, expected


def company(name: str | None, *, rows: int = 3, warm: int = 1) -> list[Client]:
    """So many requests of unequal length at once, the first ones on a stored prefix of two blocks."""
    engine = Rig(parts_for(name), max_batch=rows, blocks=256)
    shared = engine.prompt(8, seed=1)
    engine.run(shared + engine.prompt(2, seed=2))
    prompts = [(shared if i < warm else []) + engine.prompt(10, seed=10 + i) for i in range(rows)]
    clients = [engine.add(prompt, max_tokens=20 + 2 * i) for i, prompt in enumerate(prompts)]
    engine.drain()
    return clients


def foreign(clients: list[Client]) -> list[int]:
    """Places of those who do not answer as alone."""
    alone = [expected(list(c.request.prompt), c.request.params.max_tokens) for c in clients]
    return [i for i, client in enumerate(clients) if client.ids() != alone[i]]


def test_the_healthy_engine_answers_each_as_alone() -> None:
    assert foreign(company(None, rows=8, warm=4)) == []


def test_swap_rows_on_finish_harms_those_who_stay() -> None:
    assert foreign(company("swap_rows_on_finish")) == [1, 2]


def test_swap_rows_on_finish_harms_nobody_alone() -> None:
    assert foreign(company("swap_rows_on_finish", rows=1)) == []


@pytest.mark.parametrize(("rows", "harmed"), [(7, []), (8, [7])])
def test_mix_rows_of_wide_batches(rows: int, harmed: list[int]) -> None:
    assert foreign(company("mix_rows_of_wide_batches", rows=rows, warm=rows)) == harmed


@pytest.mark.parametrize(("warm", "harmed"), [(0, []), (1, [1, 2]), (3, [])])
def test_merge_warm_with_cold(warm: int, harmed: list[int]) -> None:
    assert foreign(company("merge_warm_with_cold", warm=warm)) == harmed


def test_restore_into_wrong_slot_reports_nothing_cached() -> None:
    clients = company("restore_into_wrong_slot")
    assert foreign(clients) == [1, 2]
    assert [client.cached for client in clients] == [8, 0, 0]


@pytest.mark.parametrize(
    ("name", "oldest", "harmed"),
    [(None, 8, []), ("share_by_references", 8, [3]), ("share_by_references", 0, [])],
)
def test_a_stranger_that_stays(name: str | None, oldest: int, harmed: list[int]) -> None:
    """The oldest, with so much of a stored prefix, then two with all of it, who end first, and a stranger."""
    engine = Rig(parts_for(name), blocks=256)
    shared = engine.prompt(8, seed=1)
    engine.run(shared + engine.prompt(2, seed=2))
    heads = [shared[:oldest], shared, shared, []]
    prompts = [head + engine.prompt(10, seed=10 + i) for i, head in enumerate(heads)]
    clients = [
        engine.add(prompt, max_tokens=count) for prompt, count in zip(prompts, (24, 6, 6, 16), strict=True)
    ]
    engine.drain()
    assert foreign(clients) == harmed


# ---- numbers


def logprobs(name: str | None, *, mates: int = 0) -> list[list[float | None]]:
    """Of a reply to a prompt that is cold, then warm with so many strangers beside it."""
    engine = Rig(parts_for(name))
    prompt = engine.prompt(18)
    cold = engine.add(prompt, logprobs=0)
    engine.drain()
    warm = engine.add(prompt, logprobs=0)
    for seed in range(mates):
        engine.add(engine.prompt(3, seed=50 + seed))
    engine.drain()
    assert (cold.cached, warm.cached) == (0, 16)
    return [[token.logprob for token in client.said()] for client in (cold, warm)]


@pytest.mark.parametrize("mates", [0, 2])
def test_the_healthy_engine_gives_the_same_bits(mates: int) -> None:
    cold, warm = logprobs(None, mates=mates)
    assert cold == warm


def test_first_token_differs_when_cached() -> None:
    cold, warm = logprobs("first_token_differs_when_cached")
    assert cold[0] != warm[0]
    assert cold[1:] == warm[1:]


@pytest.mark.parametrize(("mates", "equal"), [(0, True), (2, False)])
def test_perturb_in_company(mates: int, equal: bool) -> None:
    cold, warm = logprobs("perturb_in_company", mates=mates)
    assert (cold == warm) is equal


def test_round_adopted_rows() -> None:
    cold, warm = logprobs("round_adopted_rows")
    assert cold == logprobs(None)[0]
    assert cold[0] != warm[0]

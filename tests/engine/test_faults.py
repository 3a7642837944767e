"""Each fault changes what it says it changes, seen on the engine itself."""

from __future__ import annotations

from itertools import permutations

import pytest

from engine.faults import FAULTS, known, parts_for
from tests.engine.rig import Rig, expected


def rig(name: str) -> Rig:
    return Rig(parts_for(name), max_batch=8, blocks=256)


def burst(rig: Rig) -> list[int | None]:
    shared = rig.prompt(32, seed=1)
    rig.run(shared + rig.prompt(2, seed=2))
    return [c.cached for c in rig.run(*(shared + rig.prompt(2, seed=10 + i) for i in range(8)))]


def test_no_fault_is_the_healthy_engine() -> None:
    assert burst(Rig(parts_for(None), max_batch=8, blocks=256)) == [32] * 8


def test_an_unknown_fault_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="consume_on_adopt"):
        parts_for("nothing")


def test_two_faults_of_one_seam_both_show() -> None:
    engine = rig("consume_on_adopt+leak_ref_on_abort")
    assert burst(engine) == [32, 0, 0, 0, 0, 0, 0, 0]
    client = engine.add(engine.prompt(32, seed=50))
    before = engine.paged.pool.referenced
    engine.scheduler.step()
    engine.scheduler.cancel(client.request.id)
    assert engine.paged.pool.referenced > before


def test_any_two_faults_make_one_engine() -> None:
    for one, other in permutations(FAULTS, 2):
        parts = parts_for(f"{one}+{other}")
        for seam in ("paged", "dense", "sampler", "scheduler"):
            kind = getattr(parts, seam)
            both = {getattr(FAULTS[name].parts, seam) for name in (one, other)}
            assert both <= set(kind.__mro__)


def test_an_unknown_one_of_two_is_named() -> None:
    with pytest.raises(KeyError, match="unknown fault 'nothing'; known"):
        parts_for("consume_on_adopt+nothing")


def test_every_fault_tells_its_symptom_and_what_it_breaks() -> None:
    assert len(known()) == len(FAULTS) >= 7
    for fault in known():
        assert fault.symptom.endswith(".")
        assert fault.breaks


def test_consume_on_adopt_leaves_seven_of_eight_cold() -> None:
    engine = rig("consume_on_adopt")
    assert burst(engine) == [32, 0, 0, 0, 0, 0, 0, 0]
    again = engine.run(engine.prompt(32, seed=1) + engine.prompt(2, seed=30))[0]
    assert again.cached == 32


def test_truncate_entry_on_partial_match_loses_the_tail() -> None:
    engine = rig("truncate_entry_on_partial_match")
    long = engine.prompt(40, seed=1)
    engine.run(long)
    assert engine.run(long[:8] + engine.prompt(4, seed=2))[0].cached == 8
    assert engine.run(long)[0].cached == 8


def test_leak_ref_on_abort_keeps_blocks_pinned() -> None:
    engine = rig("leak_ref_on_abort")
    client = engine.add(engine.prompt(32))
    engine.scheduler.step()
    engine.scheduler.cancel(client.request.id)
    assert not engine.scheduler.busy
    assert engine.paged.pool.referenced == 2
    assert any("reference counts" in problem for problem in engine.scheduler.problems())


def test_perturb_logits_when_cached_changes_logprobs_of_adopters_only() -> None:
    engine = rig("perturb_logits_when_cached")
    prompt = engine.prompt(20)
    cold, warm = (engine.run(prompt, logprobs=0)[0] for _ in range(2))
    healthy = Rig(max_batch=8).run(prompt, logprobs=0)[0]
    values = [[getattr(e, "logprob", None) for e in c.events] for c in (cold, warm, healthy)]
    assert values[0] == values[2]
    assert values[1] != values[0]


def test_no_single_flight_computes_a_cold_prefix_once_each() -> None:
    engine = rig("no_single_flight")
    shared = engine.prompt(32, seed=1)
    clients = engine.run(*(shared + engine.prompt(2, seed=10 + i) for i in range(4)))
    assert [client.cached for client in clients] == [0] * 4


def test_report_without_reuse_says_cached_and_computes_everything() -> None:
    engine = rig("report_without_reuse")
    prompt = engine.prompt(33)
    engine.run(prompt)
    computed = engine.scheduler.counts["computed_tokens_total"]
    again = engine.run(prompt)[0]
    assert (again.cached, again.ids()) == (32, expected(prompt, 4))
    assert engine.scheduler.counts["computed_tokens_total"] - computed == 33
    assert engine.scheduler.problems() == []


def test_report_without_reuse_is_promised_every_block_it_takes() -> None:
    """A granule of two blocks, an odd number of them stored: 6 for the prompt, one for a fourth token."""
    engine = Rig(parts_for("report_without_reuse"), grid=8)
    prompt = engine.prompt(23)
    engine.run(prompt[:21])
    again = engine.add(prompt)
    engine.steps(1)
    assert (again.cached, engine.paged.promised) == (16, 7 - 2)
    engine.drain()
    assert again.ids() == expected(prompt, 4, grid=8)


def test_a_mutated_tokenizer_leaves_the_next_engine_whole() -> None:
    chat = [{"role": "user", "content": "One?"}]
    stamped = rig("stamp_the_chat").engine.tokenizer
    healthy = Rig().engine.tokenizer
    assert stamped.render_chat(chat) != healthy.render_chat(chat)
    assert healthy.render_chat(chat) == healthy.render_chat(chat)

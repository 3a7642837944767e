"""What storages promise, hold and give back, asked without a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from engine.dense import DenseStorage
from engine.messages import Request, SamplingParams
from engine.sequence import Sequence
from engine.storage import PagedStorage
from tests.engine.rig import Client, Rig, expected
from tests.engine.standin import ListStore

BLOCK = 2


def paged(blocks: int, **settings: Any) -> PagedStorage:
    return PagedStorage(cast(Any, ListStore(BLOCK)), blocks, granule=BLOCK, **settings)


def arrived(
    storage: PagedStorage | DenseStorage, prompt: tuple[int, ...], max_tokens: int = 1, n: int = 1
) -> Sequence:
    """A sequence and its branches, prepared and holding nothing."""
    request = Request(f"r{prompt}", prompt, SamplingParams(max_tokens=max_tokens, n=n))
    seq = Sequence(request)
    seq.branches = [Sequence(request, choice) for choice in range(1, n)]
    storage.prepare(seq)
    return seq


def written(storage: PagedStorage, seq: Sequence) -> list[Sequence]:
    """Admit, write the prompt, publish it and branch; the choices."""
    assert storage.admit(seq)
    return written_after(storage, seq)


def written_after(storage: PagedStorage, seq: Sequence) -> list[Sequence]:
    """The same of one that was admitted."""
    assert storage.extend(seq, seq.prompt_tokens)
    seq.computed = seq.prompt_tokens
    storage.publish(seq)
    choices, seq.branches = [seq, *seq.branches], []
    for twin in choices[1:]:
        storage.fork(seq, twin)
    return choices


# ---- promises


def test_what_is_promised_falls_with_what_is_taken_and_ends_with_its_choice() -> None:
    """A prompt of 3 and 8 rows a choice: 4 blocks each, of which the first, full, is shared by all."""
    storage = paged(20, share=False)
    seq = arrived(storage, (1, 2, 3), max_tokens=6, n=3)
    assert storage.admit(seq)
    assert storage.promised == 1 + 3 * 3
    first, second, third = written_after(storage, seq)
    assert storage.promised == 10 - 2
    assert storage.extend(first, 4)
    assert (storage.promised, storage.pool.referenced) == (10 - 3, 3)
    storage.release(first)
    assert storage.promised == 2 * 2 + 1, "two choices of two blocks, and one copy"
    storage.release(second)
    assert storage.promised == 2, "nobody shares the last block any more"
    storage.release(third)
    assert (storage.promised, storage.pool.live) == (0, 0)


def test_a_second_release_takes_nothing_from_a_sibling() -> None:
    storage = paged(20)
    first, second = written(storage, arrived(storage, (1, 2, 3), max_tokens=6, n=2))
    storage.release(first)
    before = storage.promised
    storage.release(first)
    assert (storage.promised, storage.problems([second])) == (before, [])
    assert before > 0


def test_room_of_a_choice_that_ended_lets_another_request_in() -> None:
    """The first of two choices ends at once; what it was promised is not kept until its sibling ends."""
    storage = paged(8)
    first, second = written(storage, arrived(storage, (1, 2, 3), max_tokens=6, n=2))
    late = arrived(storage, (9, 8, 7), max_tokens=4)
    assert not storage.admit(late)
    storage.release(first)
    assert storage.admit(late)
    assert storage.problems([second, late]) == []


def test_a_stored_twin_is_not_pinned_for_a_block_that_stays_shared() -> None:
    """Siblings share a block whose key another content had. When that is gone and a third stored the same, to
    pin the stored one as well would take a block that may be promised: promised must not exceed available."""
    storage = paged(8, hash_bytes=0)
    other = written(storage, arrived(storage, (5, 6, 7)))[0]
    first, second = written(storage, arrived(storage, (1, 2, 3), max_tokens=2, n=2))
    assert (first.published, storage.index.entry(first.table[0])) == (0, None)
    storage.release(other)
    storage.index.remove(storage.pool.oldest())  # type: ignore[arg-type]
    storage.pool.forget(storage.pool.oldest())  # type: ignore[arg-type]
    third = written(storage, arrived(storage, (1, 2, 4)))[0]
    storage.release(third)
    stored, available = storage.pool.oldest(), storage.pool.available
    assert stored is not None
    storage.publish(first)
    assert (storage.pool.available, storage.pool.refs(stored), first.published) == (available, 0, 0)
    storage.release(second)
    storage.publish(first)
    assert (first.table[0], storage.pool.refs(stored), storage.pool.available) == (stored, 1, available)


def test_a_prompt_without_room_fails_and_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    client = rig.add(rig.prompt(9))
    with monkeypatch.context() as patch:
        patch.setattr(rig.paged, "extend", lambda *_: False)
        rig.steps(1)
    assert client.failed is not None
    assert "promised at admission" in client.failed.message
    assert rig.scheduler.counts["computed_tokens_total"] == 0


# ---- tables


@pytest.mark.parametrize("way", ["adopt", "fork"])
def test_a_table_that_holds_blocks_is_not_overwritten(way: str) -> None:
    storage = paged(8)
    seq = written(storage, arrived(storage, (1, 2, 3)))[0]
    other = written(storage, arrived(storage, (4, 5, 6)))[0]
    held = list(other.table)
    with pytest.raises(ValueError, match="holds 2 blocks"):
        storage.adopt(other, seq.table[:1]) if way == "adopt" else storage.fork(seq, other)
    assert (other.table, storage.problems([seq, other])) == (held, [])


# ---- the integrity check


def _names(storage: PagedStorage, seq: Sequence) -> None:
    storage.index.remove(seq.table[0])


def _keeps(storage: PagedStorage, seq: Sequence) -> None:
    storage.pool.keep(seq.table[1])


def _swaps(storage: PagedStorage, seq: Sequence) -> None:
    storage.pool.forget(seq.table[0])
    storage.pool.keep(seq.table[1])


@pytest.mark.parametrize("damage", [_names, _keeps, _swaps])
def test_the_check_compares_what_is_kept_with_what_is_named(
    damage: Callable[[PagedStorage, Sequence], None],
) -> None:
    storage = paged(8)
    seq = written(storage, arrived(storage, (1, 2, 3)))[0]
    assert storage.problems([seq]) == []
    damage(storage, seq)
    assert storage.problems([seq]) == ["the blocks that are kept are not those that the index names"]


def test_the_check_compares_promises_with_who_runs() -> None:
    storage = paged(8)
    seq = written(storage, arrived(storage, (1, 2, 3)))[0]
    storage._admitted.add(arrived(storage, (7, 7)))
    assert storage.problems([seq]) == ["those to whom blocks are promised are not those that run"]
    storage._admitted.clear()
    assert storage.problems([seq]) == ["those to whom blocks are promised are not those that run"]


# ---- dense


def dense() -> tuple[Rig, DenseStorage]:
    rig = Rig(storage="dense", blocks=16)
    assert isinstance(rig.engine.storage, DenseStorage)
    return rig, rig.engine.storage


def test_dense_choices_are_booked_until_each_has_ended() -> None:
    """64 tokens in all; three choices of 12 rows. The first to end frees its own 12 and no more."""
    rig, storage = dense()
    client = rig.add(rig.prompt(9), max_tokens=4, n=3)
    rig.steps(1)
    assert storage.booked == 36
    rig.steps(1)
    head = rig.scheduler.running[0]
    assert (head.choice, storage.booked) == (0, 36)
    rig.scheduler._finish(head, "stop")
    assert (storage.booked, rig.scheduler.problems()) == (24, [])
    rig.drain()
    assert (storage.booked, client.ids(2)) == (0, expected(rig.prompt(9), 4))


def test_dense_rows_are_not_overwritten() -> None:
    _, storage = dense()
    first, second = (arrived(storage, tokens) for tokens in ((1, 2), (3, 4)))
    assert [storage.admit(seq) for seq in (first, second)] == [True, True]
    with pytest.raises(ValueError, match="holds rows"):
        storage.fork(first, second)


def test_dense_integrity_sees_who_holds_and_how_much() -> None:
    rig, storage = dense()
    client: Client = rig.add(rig.prompt(9))
    rig.scheduler.step()
    assert rig.scheduler.problems() == []
    storage.budget = 10
    assert rig.scheduler.problems() == ["12 tokens booked and 0 stored, budget 10"]
    storage.held.clear()
    assert "rows are held" in rig.scheduler.problems()[0]
    assert client.failed is None

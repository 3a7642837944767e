"""The digest model: any wrong row changes the output, and it is fast because it computes nothing."""

from __future__ import annotations

import hashlib
import struct

import mlx.core as mx
import pytest

from engine.digest import DigestModel
from engine.kvview import ArrayView
from engine.model import DecodeRow, Runner, load
from engine.tokenizer import ByteTokenizer

PLAIN = ByteTokenizer().plain_ids()
TOKENS = [(7 * i + 3) % 512 for i in range(200)]


@pytest.fixture
def model() -> DigestModel:
    return DigestModel(PLAIN)


def cold(model: Runner, tokens: list[int]) -> tuple[ArrayView, mx.array]:
    view = ArrayView(model.shape)
    return view, model.prefill(view, tokens, 0, len(tokens))


def same_rows(a: ArrayView, b: ArrayView, length: int) -> bool:
    return all(bool(mx.array_equal(x, y)) for x, y in zip(a.read(0, length), b.read(0, length), strict=True))


@pytest.mark.parametrize("start", [32, 45, 199])
def test_a_resumed_prefill_is_the_cold_one(model: DigestModel, start: int) -> None:
    view, logits = cold(model, TOKENS)
    resumed = ArrayView(model.shape)
    model.prefill(resumed, TOKENS, 0, start)
    assert mx.array_equal(model.prefill(resumed, TOKENS, start, 200), logits)
    assert same_rows(view, resumed, 200)


def test_decode_gives_what_prefill_gives(model: DigestModel) -> None:
    view, _ = cold(model, TOKENS[:199])
    whole, logits = cold(model, TOKENS)
    assert mx.array_equal(model.decode([DecodeRow(view, TOKENS[199], 199)])[0], logits)
    assert same_rows(view, whole, 200)


def test_a_rows_output_does_not_depend_on_its_mates(model: DigestModel) -> None:
    alone, _ = cold(model, TOKENS[:50])
    paired, _ = cold(model, TOKENS[:50])
    mate, _ = cold(model, TOKENS[3:90])
    expected = model.decode([DecodeRow(alone, 65, 50)])[0]
    assert mx.array_equal(model.decode([DecodeRow(mate, 66, 87), DecodeRow(paired, 65, 50)])[1], expected)


def test_every_rows_logits_are_those_of_a_prefill_that_ends_there(model: DigestModel) -> None:
    tokens = list(range(100, 150))
    view, _ = cold(model, tokens[:20])
    scored = model.prefill_logits(view, tokens, 20, 50)
    ended = [cold(model, tokens[:stop])[1] for stop in range(21, 51)]
    assert all(mx.array_equal(a, b) for a, b in zip(scored, ended, strict=True))


@pytest.mark.parametrize("position", [0, 77, 198])
@pytest.mark.parametrize("store", ["keys", "values"])
def test_one_foreign_row_changes_the_logits(model: DigestModel, store: str, position: int) -> None:
    view, _ = cold(model, TOKENS[:199])
    spoilt = view.copy()
    getattr(spoilt, store)[0][:, position] = 0.0
    expected = model.decode([DecodeRow(view, 65, 199)])[0]
    assert not mx.array_equal(model.decode([DecodeRow(spoilt, 65, 199)])[0], expected)


def test_an_early_token_changes_every_later_row(model: DigestModel) -> None:
    view, _ = cold(model, TOKENS)
    other, _ = cold(model, [TOKENS[0] + 1, *TOKENS[1:]])
    same = (view.keys[0] == other.keys[0]).all(axis=-1)
    assert not mx.any(same[:, :200])


def test_only_plain_ids_can_win(model: DigestModel) -> None:
    _, logits = cold(model, TOKENS)
    others = mx.array([i for i in range(512) if i not in set(PLAIN)])
    assert bool(mx.max(logits[others]) < mx.min(logits[mx.array(PLAIN)]))


def test_another_seed_is_another_model(model: DigestModel) -> None:
    _, logits = cold(model, TOKENS)
    assert not mx.array_equal(cold(DigestModel(PLAIN, seed=1), TOKENS)[1], logits)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 5), (0, 201)])
def test_a_range_outside_the_tokens_is_an_error(model: DigestModel, start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="not a part of 200 tokens"):
        model.prefill(ArrayView(model.shape), TOKENS, start, stop)


def test_a_row_is_the_digest_of_the_row_before_and_of_its_token(model: DigestModel) -> None:
    """So that outputs stay what they are, however the chain is computed."""
    view, _ = cold(model, [1, 2])
    row = b""
    for place, token in enumerate([1, 2]):
        digest = hashlib.blake2b(row + bytes([token, 0, 0, 0]), digest_size=16, salt=bytes(8)).digest()
        words = [int.from_bytes(digest[at : at + 4], "little") for at in range(0, 16, 4)]
        row = struct.pack("<4I", *(word & 0xBFFFFFFF | 0x20000000 for word in words))
        assert tuple(view.read(0, 2)[0][0, place].tolist()) == struct.unpack("<4f", row)  # type: ignore[arg-type]
    assert row.hex() == "c59ebabea53493332938822d4d1f98ba"


def test_every_float_of_a_row_is_an_ordinary_one(model: DigestModel) -> None:
    """Neither zero nor subnormal, infinite or no number: whatever copies a row keeps its bits."""
    view, _ = cold(model, TOKENS * 10)
    sizes = mx.abs(view.read(0, 2000)[0])
    assert mx.min(sizes).item() >= 2.0**-63  # type: ignore[operator]
    assert mx.max(sizes).item() < 2  # type: ignore[operator]


def test_it_is_loaded_by_name() -> None:
    runner, tokenizer = load("digest", seed=5, grid=16)
    assert runner.grid == 16
    assert runner.shape.vocab == tokenizer.vocab_size

"""The built-in model as a detector, at 3,712 tokens: what a wrong row does to the output.

One prompt is computed once; every case replays only the tail of it over a spoilt copy.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

import mlx.core as mx
import pytest

from engine.blas import OPENBLAS, available
from engine.kvview import ArrayView
from engine.model import CanonicalModel, DecodeRow, load
from engine.tiny import TINY, tiny, tiny_weights
from engine.tokenizer import ByteTokenizer

N = 3712
BLOCK = 32
CASES = 50
STEPS = 128
PLAIN = ByteTokenizer().plain_ids()


def prompt(seed: int, length: int = N) -> list[int]:
    return random.Random(seed).choices(PLAIN, k=length)


OWN, FOREIGN = prompt(1003), prompt(2000)


@cache
def model() -> CanonicalModel:
    return tiny(PLAIN)


@cache
def prefilled(tokens: tuple[int, ...]) -> tuple[ArrayView, mx.array]:
    """Keys and values of a prompt, and the logits after it. Copy the view before writing to it."""
    view = ArrayView(model().shape, len(tokens) + 2 * STEPS)
    return view, model().prefill(view, tokens, 0, len(tokens))


def own() -> tuple[ArrayView, mx.array]:
    return prefilled(tuple(OWN))


def logprobs(logits: mx.array) -> mx.array:
    """[ids that can be generated]"""
    return (logits - mx.logsumexp(logits))[mx.array(PLAIN)]


def best(logits: mx.array) -> int:
    return int(mx.argmax(logits).item())  # type: ignore[arg-type]


def greedy(
    views: Sequence[ArrayView], first: Sequence[mx.array], position: int, steps: int
) -> list[list[mx.array]]:
    """Per view, the logits of ``steps`` greedy tokens, decoded ten at a time."""
    seen = [[logits] for logits in first]
    for step in range(steps - 1):
        rows = [DecodeRow(v, best(s[-1]), position + step) for v, s in zip(views, seen, strict=True)]
        for logits, s in zip(model().decode(rows), seen, strict=True):
            s.append(logits)
    return seen


@cache
def reference() -> list[mx.array]:
    """Logits of the greedy reply to the prompt."""
    view, logits = own()
    return greedy([view.copy()], [logits], N, STEPS)[0]


def ids(seen: Sequence[mx.array]) -> list[int]:
    return [best(logits) for logits in seen]


# -- (a) one foreign block -----------------------------------------------------------------------------------


def with_block(view: ArrayView, other: ArrayView, block: int) -> ArrayView:
    """A copy of ``view`` whose block holds the rows of ``other``."""
    twin, at = view.copy(), slice(block * BLOCK, (block + 1) * BLOCK)
    for layer in range(view.shape.layers):
        twin.keys[layer][:, at] = other.keys[layer][:, at]
        twin.values[layer][:, at] = other.values[layer][:, at]
    return twin


def replies(other: ArrayView, blocks: Sequence[int]) -> list[list[int]]:
    """32 greedy ids after the last prompt token was computed over each spoilt copy."""
    twins = [with_block(own()[0], other, block) for block in blocks]
    first = [model().prefill(twin, OWN, N - 1, N) for twin in twins]
    return [ids(seen) for seen in greedy(twins, first, N, BLOCK)]


def test_any_foreign_block_changes_the_reply_within_32_tokens() -> None:
    other, _ = prefilled(tuple(FOREIGN))
    blocks = random.Random(1).sample(range(N // BLOCK - 1), CASES)
    spoilt = [reply for i in range(0, CASES, 10) for reply in replies(other, blocks[i : i + 10])]
    unchanged = [b for b, reply in zip(blocks, spoilt, strict=True) if reply == ids(reference())[:BLOCK]]
    assert unchanged == []


def test_a_block_put_back_as_it_was_changes_nothing() -> None:
    assert replies(own()[0], [3, 70]) == [ids(reference())[:BLOCK]] * 2


def test_right_tokens_after_another_prefix_are_a_foreign_block_too() -> None:
    """A block found by its own tokens alone, without those before it."""
    tokens = [*FOREIGN[: N // 2], *OWN[N // 2 :]]
    assert ids(reference())[:BLOCK] not in replies(prefilled(tuple(tokens))[0], [N // 2 // BLOCK + 3])


# -- (b) one zeroed key row ----------------------------------------------------------------------------------


def moved(position: int, layer: int) -> float:
    """Largest change of the next logprobs when one key row of one layer is zeroed."""
    view, logits = own()
    twin = view.copy()
    twin.keys[layer][:, position] = 0.0
    return apart(model().prefill(twin, OWN, N - 1, N), logits)


def apart(a: mx.array, b: mx.array) -> float:
    return float(mx.abs(logprobs(a) - logprobs(b)).max())


def grid_noise() -> float:
    """What another chunk size does to the same logprobs in this process."""
    other = tiny(PLAIN, grid=256)
    return apart(other.prefill(ArrayView(other.shape), OWN, 0, N), own()[1])


@cache
def openblas_noise() -> float:
    """`grid_noise` where rounding depends on the shape; 0 where OpenBLAS is absent."""
    if not available():
        return 0.0
    code = (
        f"import ctypes; ctypes.CDLL({OPENBLAS!r}, ctypes.RTLD_GLOBAL)\n"
        "import json; from tests.engine.test_tiny import grid_noise; print(json.dumps(grid_noise()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    return float(json.loads(run.stdout))


def test_a_zeroed_key_row_is_far_louder_than_rounding() -> None:
    need = 100 * max(openblas_noise(), 1e-6)
    chance = random.Random(2)
    changes = [moved(chance.randrange(N - BLOCK), case % 2) for case in range(CASES)]
    assert sum(change >= need for change in changes) >= 0.95 * CASES


@pytest.mark.skipif(not available(), reason=f"{OPENBLAS} is not installed (Debian: libopenblas0)")
def test_the_rounding_it_is_measured_against_is_real() -> None:
    assert 0 < openblas_noise() < 1e-4


# -- (c) no loop, (d) clear winners --------------------------------------------------------------------------


def period(reply: Sequence[int]) -> int:
    """Smallest period, up to 32, that some stretch repeats at least three times; 0 for none."""
    for p in range(1, 33):
        run = 0
        for i in range(p, len(reply)):
            run = run + 1 if reply[i] == reply[i - p] else 0
            if run >= max(2 * p, 8):
                return p
    return 0


def test_the_loop_finder_finds_loops() -> None:
    assert period([1, 2, 3, 4, 5, *[7, 8, 9] * 4]) == 3
    assert period([5] * 12) == 1
    assert period(list(range(128))) == 0


SUFFIXES = [prompt(seed, 24) for seed in range(7)]


@cache
def continued() -> list[list[mx.array]]:
    """Greedy replies to eight prompts that share all but their last 24 tokens."""
    view, _ = own()
    twins = [view.copy() for _ in SUFFIXES]
    first = [
        model().prefill(twin, [*OWN[: N - 24], *suffix], N - 24, N)
        for twin, suffix in zip(twins, SUFFIXES, strict=True)
    ]
    return [reference(), *greedy(twins, first, N, STEPS)]


def test_greedy_replies_do_not_loop_within_128_tokens() -> None:
    assert [period(ids(seen)) for seen in continued()] == [0] * 8


def test_replies_to_different_prompts_differ() -> None:
    assert len({tuple(ids(seen)[:BLOCK]) for seen in continued()}) == 8


def gaps() -> list[float]:
    tops = [mx.topk(logits, 2) for seen in continued() for logits in seen]
    return sorted(float(mx.abs(top[1] - top[0])) for top in tops)


def test_winners_are_clear_of_rounding() -> None:
    """fp32 noise on these logits is below 1e-5."""
    found = gaps()
    assert found[0] > 1e-4
    assert found[len(found) // 100] > 3e-3
    assert found[len(found) // 2] > 0.3


def test_no_special_or_byte_id_comes_near_winning() -> None:
    silent = mx.array([i for i in range(512) if i not in set(PLAIN)])
    worst = max(float(mx.max(logits[silent]) - mx.max(logits)) for seen in continued() for logits in seen)
    assert worst < -15


# -- weights -------------------------------------------------------------------------------------------------


def digest(weights: dict[str, mx.array]) -> str:
    data = hashlib.sha256()
    for name in sorted(weights):
        data.update(name.encode() + bytes(memoryview(weights[name])))  # type: ignore[arg-type]
    return data.hexdigest()[:16]


def test_a_seed_is_a_model() -> None:
    assert digest(tiny_weights(PLAIN)) == digest(tiny_weights(PLAIN, 229))
    assert digest(tiny_weights(PLAIN)) != digest(tiny_weights(PLAIN, 228))


def test_weights_have_mlx_lms_names_and_shapes() -> None:
    weights = tiny_weights(PLAIN)
    assert weights["lm_head.weight"].shape == (512, 64)
    assert weights["model.layers.1.self_attn.o_proj.weight"].shape == (64, 32)
    assert weights["model.layers.0.mlp.down_proj.weight"].shape == (64, 128)
    assert len(weights) == 2 + 1 + TINY.num_hidden_layers * 9


# -- tiny-fat ------------------------------------------------------------------------------------------------


def test_tiny_fat_stores_64_kib_of_keys_and_values_a_token() -> None:
    assert load("tiny-fat")[0].shape.kv_bytes_per_token == 64 * 1024


def test_tiny_fat_says_what_tiny_says() -> None:
    fat, thin = load("tiny-fat")[0], model()
    views = ArrayView(fat.shape), ArrayView(thin.shape)
    pair = [m.prefill(v, OWN, 0, 70) for m, v in zip((fat, thin), views, strict=True)]
    pair += [m.decode([DecodeRow(v, 65, 70)])[0] for m, v in zip((fat, thin), views, strict=True)]
    assert mx.array_equal(pair[0], pair[1])
    assert mx.array_equal(pair[2], pair[3])
    assert views[0].keys[0].shape[0] == 128


@pytest.mark.parametrize("store", ["keys", "values"])
def test_tiny_fat_reads_what_it_stored(store: str) -> None:
    fat = load("tiny-fat")[0]
    view = ArrayView(fat.shape)
    logits = fat.prefill(view, OWN, 0, 70)
    getattr(view, store)[0][:, 20] = 0.0
    assert not mx.array_equal(fat.prefill(view, OWN, 69, 70), logits)

"""The canonical forward: the right numbers, and bits that depend on nothing but the tokens before.

The bundled BLAS gives equal bits whatever one does, so every bit test also runs with OpenBLAS, in a process
of its own; the controls there show that the test would notice a product whose shape depends on the batch.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from engine.blas import OPENBLAS, available
from engine.kvview import ArrayView
from engine.model import (
    CanonicalModel,
    DecodeRow,
    LlamaConfig,
    ModelError,
    ModelShape,
    Runner,
    Slot,
    load,
)
from engine.probe import decode_as_prefill
from engine.products import Linear
from engine.tiny import TINY, tiny_weights
from engine.tokenizer import ByteTokenizer

PLAIN = ByteTokenizer().plain_ids()
TOKENS = [(37 * i * i + 11 * i) % 509 for i in range(700)]
START = 352  # on the grid of 32, not on that of 128
STOP = 645


GROUPED = replace(
    TINY,
    vocab_size=48,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    rope_theta=500.0,
)
WIDE = replace(GROUPED, vocab_size=512, hidden_size=512, intermediate_size=512, max_position_embeddings=4096)


def random_weights(c: LlamaConfig) -> dict[str, mx.array]:
    """A tied head, biases on queries and keys, everything else from a seed."""
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    hidden, inner = c.hidden_size, c.intermediate_size
    sizes = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    w = {
        "model.embed_tokens.weight": noise((c.vocab_size, hidden), 0),
        "model.norm.weight": noise((hidden,), 1),
    }
    for i in range(c.num_hidden_layers):
        p = f"model.layers.{i}"
        for n, (name, size) in enumerate(sizes.items()):
            w[f"{p}.{name}.weight"] = noise(size, 10 * i + n + 2) / math.sqrt(size[1])
        w[f"{p}.self_attn.q_proj.bias"] = noise((q,), 90 + i)
        w[f"{p}.self_attn.k_proj.bias"] = noise((kv,), 95 + i)
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[f"{p}.{name}.weight"] = noise((hidden,), 80 + i)
    return w


def noise(shape: tuple[int, ...], key: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(key))


class PlainProducts(CanonicalModel):
    """Rows of all sequences in one product, as a server without canonical compute has them."""

    def project(self, x: mx.array, linear: Linear) -> mx.array:
        flat = (x.reshape(-1, x.shape[-1]) @ linear.weight).reshape(*x.shape[:-1], -1)
        return flat if linear.bias is None else flat + linear.bias


class OffGrid(CanonicalModel):
    """Prefill in one tile from wherever it starts."""

    def tiles(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        yield start, stop


def model(kind: type[CanonicalModel] = CanonicalModel, grid: int = 32) -> CanonicalModel:
    return kind(TINY, tiny_weights(PLAIN), grid=grid)


def wide(kind: type[CanonicalModel] = CanonicalModel) -> CanonicalModel:
    """Wide enough for OpenBLAS to round a product of one row unlike one of eight."""
    return kind(WIDE, random_weights(WIDE))


def cold(runner: Runner, tokens: Sequence[int], stop: int) -> tuple[ArrayView, mx.array]:
    view = ArrayView(runner.shape)
    return view, runner.prefill(view, tokens, 0, stop)


class Counting(CanonicalModel):
    """Notes by layer what is gathered from a view, and what attends over it."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.gathered: Counter[int] = Counter()
        self.attended = 0

    def read(self, slot: Slot, layer: int) -> tuple[mx.array, mx.array]:
        self.gathered[layer] += 1
        return super().read(slot, layer)

    def attend(self, q: mx.array, k: mx.array, v: mx.array, mask: mx.array) -> mx.array:
        self.attended += 1
        return super().attend(q, k, v, mask)


def test_tiles_that_go_together_have_their_keys_gathered_once_and_no_output_that_nobody_wants() -> None:
    counting = Counting(TINY, tiny_weights(PLAIN), grid=32)
    counting.most_tiles = tiles = 4
    cold(counting, TOKENS, 32 * tiles)
    layers = TINY.num_hidden_layers
    assert counting.gathered == dict.fromkeys(range(layers), 1)
    assert counting.attended == tiles * (layers - 1) + 1  # at the top the last tile alone has logits


def test_sequences_that_decode_together_have_their_own_keys_each() -> None:
    """The control: what is gathered once is not gathered once for all."""
    counting = Counting(TINY, tiny_weights(PLAIN), grid=32)
    views = [cold(counting, TOKENS[at:], 40)[0] for at in (0, 1)]
    counting.gathered.clear()
    counting.decode([DecodeRow(view, 5, 40) for view in views])
    assert counting.gathered == dict.fromkeys(range(TINY.num_hidden_layers), len(views))


def rows(view: ArrayView, length: int) -> list[mx.array]:
    return [x for layer in range(view.shape.layers) for x in view.read(layer, length)]


def equal(a: Sequence[mx.array], b: Sequence[mx.array]) -> bool:
    return all(bool(mx.array_equal(x, y)) for x, y in zip(a, b, strict=True))


def resumes(runner: Runner, start: int) -> bool:
    """Whether a prefill resumed at ``start`` gives the keys, values and logits of a cold one."""
    view, logits = cold(runner, TOKENS, STOP)
    part, _ = cold(runner, TOKENS, start)
    resumed = runner.prefill(part, TOKENS, start, STOP)
    return equal([resumed, *rows(part, STOP)], [logits, *rows(view, STOP)])


def scores_as_it_prefills(runner: Runner, start: int) -> bool:
    """Whether every row's logits are those of a cold prefill that ends there; rows written too."""
    part, _ = cold(runner, TOKENS, start)
    stop = start + 40
    scored = runner.prefill_logits(part, TOKENS, start, stop)
    colds = [cold(runner, TOKENS, end) for end in range(start + 1, stop + 1)]
    return equal([*scored, *rows(part, stop)], [*(logits for _, logits in colds), *rows(colds[-1][0], stop)])


def tiles_alone_as_together(kind: type[CanonicalModel] = CanonicalModel, start: int = START) -> bool:
    """Whether a prefill gives the same bits whatever number of its tiles go through the layers together."""
    found = []
    for most in (1, 3, 8):
        runner = wide(kind)
        runner.most_tiles = most
        view, _ = cold(runner, TOKENS, start)
        logits = runner.prefill(view, TOKENS, start, STOP)
        found.append([logits, *runner.prefill_logits(view, TOKENS, start, STOP), *rows(view, STOP)])
    return equal(found[0], found[1]) and equal(found[0], found[2])


def alone_as_in_company(runner: Runner) -> bool:
    """Whether rows of different lengths give the same bits alone, in pairs and all eight together."""
    lengths = [33, 96, 200, 317, 401, 512, 600, 645]
    views = [cold(runner, TOKENS[i:], n)[0] for i, n in enumerate(lengths)]

    def step(members: Sequence[int]) -> list[list[mx.array]]:
        twins = [views[i].copy() for i in members]
        logits = runner.decode([DecodeRow(v, 65, lengths[i]) for v, i in zip(twins, members, strict=True)])
        return [
            [one, *rows(twin, lengths[i] + 1)] for one, twin, i in zip(logits, twins, members, strict=True)
        ]

    together = step(range(8))
    alone = [step([i])[0] for i in range(8)]
    pairs = [pair for i in range(0, 8, 2) for pair in reversed(step([i + 1, i]))]
    return all(equal(a, b) and equal(a, c) for a, b, c in zip(together, alone, pairs, strict=True))


def report() -> dict[str, bool]:
    """Everything about bits that depends on the BLAS of this process."""
    return {
        "resume": resumes(model(), START),
        "resume off the grid": resumes(model(), START + 5),
        "resume on a wide grid": resumes(model(grid=128), START),
        "scores": scores_as_it_prefills(model(), 64),
        "scores off the grid": scores_as_it_prefills(model(), 45),
        "scores on a wide grid": scores_as_it_prefills(model(grid=128), 45),
        "tiles together": tiles_alone_as_together(),
        "tiles together off the grid": tiles_alone_as_together(start=START + 5),
        "company": alone_as_in_company(model()),
        "company on a wide grid": alone_as_in_company(model(grid=128)),
        "company in a wide model": alone_as_in_company(wide()),
        "tiles that start anywhere": resumes(model(OffGrid), START + 5),
        "one product for all rows": alone_as_in_company(wide(PlainProducts)),
        "decode as prefill": decode_as_prefill(model()).equal,
    }


CANONICAL = [
    "resume",
    "resume off the grid",
    "resume on a wide grid",
    "scores",
    "scores off the grid",
    "scores on a wide grid",
    "tiles together",
    "tiles together off the grid",
    "company",
    "company on a wide grid",
    "company in a wide model",
]


@cache
def builtin() -> dict[str, bool]:
    return report()


@cache
def in_openblas(name: str, module: str = "test_model") -> Any:
    """What a function of a module here returns in a process that computes with OpenBLAS."""
    code = (
        f"import ctypes; ctypes.CDLL({OPENBLAS!r}, ctypes.RTLD_GLOBAL)\n"
        f"import json; from tests.engine import {module}; print(json.dumps({module}.{name}()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    return json.loads(run.stdout)


def openblas() -> dict[str, bool]:
    seen: dict[str, bool] = in_openblas("report")
    return seen


needs_openblas = pytest.mark.skipif(
    not available(), reason=f"{OPENBLAS} is not installed (Debian: libopenblas0)"
)


@pytest.mark.parametrize("case", CANONICAL)
def test_bits_depend_on_the_tokens_alone(case: str) -> None:
    assert builtin()[case]


@needs_openblas
@pytest.mark.parametrize("case", CANONICAL)
def test_bits_depend_on_the_tokens_alone_with_openblas(case: str) -> None:
    assert openblas()[case]


@needs_openblas
@pytest.mark.parametrize("case", ["tiles that start anywhere", "one product for all rows"])
def test_a_shape_that_depends_on_the_batch_is_seen_with_openblas(case: str) -> None:
    assert not openblas()[case]


def test_decode_is_measured_to_equal_prefill_on_the_bundled_blas() -> None:
    assert builtin()["decode as prefill"]


@needs_openblas
def test_decode_is_measured_to_differ_from_prefill_with_openblas() -> None:
    assert not openblas()["decode as prefill"]


# -- a row that is alone ----------------------------------------------------------------------------


class AloneIsOther(CanonicalModel):
    """One row gets another product than each of several, as CUDA gives it."""

    def project(self, x: mx.array, linear: Linear) -> mx.array:
        return super().project(x, linear) * (1.0 if x.shape[:2] != (1, 1) else 1.0 + 2.0**-12)


def alone_is_other(least_rows: int) -> CanonicalModel:
    runner = wide(AloneIsOther)
    runner.least_rows = least_rows
    return runner


@pytest.mark.parametrize(("least_rows", "same"), [(1, False), (2, True), (3, True)])
def test_a_row_with_copies_of_itself_gets_the_bits_it_has_in_company(least_rows: int, same: bool) -> None:
    assert alone_as_in_company(alone_is_other(least_rows)) is same


@pytest.mark.parametrize(("least_rows", "same"), [(1, False), (2, True)])
def test_the_head_gives_a_prefill_the_product_it_gives_decode_in_company(least_rows: int, same: bool) -> None:
    runner = alone_is_other(least_rows)
    view, _ = cold(runner, TOKENS, 40)
    twins = [view.copy() for _ in range(2)]
    decoded = runner.decode([DecodeRow(twin, TOKENS[40], 40) for twin in twins])
    assert equal(decoded[:1], [cold(runner, TOKENS, 41)[1]]) is same
    assert equal(decoded[:1], runner.prefill_logits(view, TOKENS, 40, 41)) is same


def test_copies_of_a_row_write_nothing_and_have_no_logits() -> None:
    runner = model()
    runner.least_rows = 4
    view = Watched(runner.shape)
    assert len(runner.decode([DecodeRow(view, 65, 40)])) == 1
    assert view.rows_written == 2


@pytest.mark.parametrize(("rows", "products"), [(1, {2}), (2, {2}), (3, {3})])
def test_only_a_row_that_is_alone_gets_a_copy(rows: int, products: set[int]) -> None:
    seen: set[int] = set()

    class Counted(CanonicalModel):
        def project(self, x: mx.array, linear: Linear) -> mx.array:
            seen.add(x.shape[0])
            return super().project(x, linear)

    runner = model(Counted)
    runner.least_rows = 2
    runner.decode([DecodeRow(ArrayView(runner.shape), 65, at) for at in range(rows)])
    assert seen == products


# -- the numbers, against the textbook formula written out over whole matrices ----------------------


def textbook(config: LlamaConfig, w: Mapping[str, mx.array], ids: Sequence[int]) -> mx.array:
    """Logits [T, vocab] of a Llama by the formula: no cache, no tiles, rotation by complex numbers."""

    def norm(x: mx.array, name: str) -> mx.array:
        return x / mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True) + config.rms_norm_eps) * w[f"{name}.weight"]

    def turn(x: mx.array) -> mx.array:
        half = config.head_dim // 2
        rates = mx.array([config.rope_theta ** (-i / half) for i in range(half)])
        angle = mx.arange(x.shape[1])[:, None] * rates
        a, b = x[..., :half], x[..., half:]
        cos, sin = mx.cos(angle), mx.sin(angle)
        return mx.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    def heads(x: mx.array, name: str) -> mx.array:
        y = x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", mx.array(0.0))
        return y.reshape(len(ids), -1, config.head_dim).swapaxes(0, 1)

    x = w["model.embed_tokens.weight"][mx.array(list(ids))]
    hidden = mx.triu(mx.full((len(ids), len(ids)), -math.inf), k=1)
    for i in range(config.num_hidden_layers):
        p = f"model.layers.{i}"
        h = norm(x, f"{p}.input_layernorm")
        q, k, v = (heads(h, f"{p}.self_attn.{n}_proj") for n in "qkv")
        group = config.num_attention_heads // config.num_key_value_heads
        k, v = mx.repeat(turn(k), group, axis=0), mx.repeat(v, group, axis=0)
        scores = turn(q) @ k.swapaxes(1, 2) / math.sqrt(config.head_dim) + hidden
        seen = (mx.softmax(scores, axis=-1) @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = x + seen @ w[f"{p}.self_attn.o_proj.weight"].T
        h = norm(x, f"{p}.post_attention_layernorm")
        gate, up = (h @ w[f"{p}.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        x = x + (gate / (1 + mx.exp(-gate)) * up) @ w[f"{p}.mlp.down_proj.weight"].T
    return norm(x, "model.norm") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def close(a: mx.array, b: mx.array) -> bool:
    return bool(mx.allclose(a, b, rtol=1e-3, atol=1e-3))


@pytest.mark.parametrize("stop", [1, 31, 32, 33, 100])
def test_prefill_gives_the_textbook_logits(stop: int) -> None:
    _, logits = cold(model(), TOKENS, stop)
    assert close(logits, textbook(TINY, tiny_weights(PLAIN), TOKENS[:stop])[-1])


def test_the_textbook_comparison_notices_a_change() -> None:
    _, logits = cold(model(), TOKENS, 100)
    changed = [TOKENS[0] + 1, *TOKENS[1:100]]
    assert not close(logits, textbook(TINY, tiny_weights(PLAIN), changed)[-1])


def test_grouped_heads_biases_and_a_tied_head_give_the_textbook_logits() -> None:
    ids = [i * i % 48 for i in range(50)]
    expected = textbook(GROUPED, random_weights(GROUPED), ids)
    runner = CanonicalModel(GROUPED, random_weights(GROUPED), grid=16)
    view, logits = cold(runner, ids, 49)
    assert close(logits, expected[48])
    assert close(runner.decode([DecodeRow(view, ids[49], 49)])[0], expected[49])


# -- rows -------------------------------------------------------------------------------------------


class Watched(ArrayView):
    """Remembers which positions were written."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.written: set[tuple[int, int]] = set()
        self.rows_written = 0

    def write(self, layer: int, start: int, k: mx.array, v: mx.array) -> None:
        self.rows_written += k.shape[1]
        self.written |= {(layer, start + i) for i in range(k.shape[1])}
        super().write(layer, start, k, v)


@pytest.mark.parametrize(("start", "stop"), [(0, 20), (40, 90), (64, 65), (70, 130)])
def test_only_rows_asked_for_are_written(start: int, stop: int) -> None:
    runner = model()
    view = Watched(runner.shape)
    runner.prefill(view, TOKENS, start, stop)
    assert view.written == {(layer, p) for layer in range(2) for p in range(start, stop)}


def test_decode_writes_one_row_per_layer() -> None:
    runner = model()
    view = Watched(runner.shape)
    runner.decode([DecodeRow(view, 65, 40)])
    assert view.written == {(0, 40), (1, 40)}


@pytest.mark.parametrize(("start", "stop"), [(-1, 4), (4, 4), (5, 4), (0, 701)])
def test_a_range_outside_the_tokens_is_an_error(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=rf"prefill of \[{start}, {stop}\) asked of 700 tokens"):
        model().prefill(ArrayView(model().shape), TOKENS, start, stop)
    with pytest.raises(ValueError, match=rf"prefill of \[{start}, {stop}\) asked of 700 tokens"):
        model().prefill_logits(ArrayView(model().shape), TOKENS, start, stop)


def test_a_grid_without_rows_is_refused() -> None:
    with pytest.raises(ModelError, match="grid must be at least 1 row, got 0"):
        model(grid=0)


def test_bytes_of_a_token_count_keys_and_values_of_all_layers() -> None:
    assert ModelShape(10, 3, 2, 16, 100, mx.float16).kv_bytes_per_token == 3 * 2 * 2 * 16 * 2


def test_a_view_reads_zeros_where_nothing_was_written() -> None:
    view = ArrayView(ModelShape(10, 1, 1, 2, 100, mx.float32))
    view.write(0, 1, mx.ones((1, 1, 2)), mx.ones((1, 1, 2)))
    assert view.read(0, 3)[0].tolist() == [[[0, 0], [1, 1], [0, 0]]]


# -- loading ----------------------------------------------------------------------------------------


def test_the_built_in_model_is_loaded_by_name_with_its_tokenizer() -> None:
    runner, tokenizer = load("tiny", grid=64)
    assert (runner.grid, runner.shape.vocab) == (64, tokenizer.vocab_size)


def test_starting_the_built_in_model_imports_no_heavy_library() -> None:
    code = (
        "import sys; from engine.model import load; load('tiny')[1].encode('x')\n"
        "print(sorted({'mlx_lm', 'transformers', 'tokenizers', 'numpy', 'jinja2'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"


def test_a_seed_makes_no_sense_for_a_folder() -> None:
    with pytest.raises(ModelError, match=r"seed applies to tiny, tiny-fat, digest only, not to '/nowhere'"):
        load("/nowhere", seed=1)

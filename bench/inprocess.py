"""An engine stepped by hand on seeded weights of a chosen shape, and what a burst of requests costs in it.

Knows the shapes, the three ways to make products, how scheduler and store are put together, and the least a
burst may cost. Does not know HTTP, a tokenizer, phases or how results are printed. Imports of the engine only
what computes, so that it runs where nothing but MLX is installed.

The weights are noise, with gains under which a reply depends on all of its prompt. What generating requests
write stays private: none of the figures here rests on it.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx

from engine.fast import FastRows
from engine.kv import BlockStore
from engine.messages import Done, Event, Failed, Request, SamplingParams, Started, TextCodec, Token
from engine.model import CanonicalModel, LlamaConfig
from engine.products import Linear
from engine.sampling import Sampler
from engine.scheduler import Scheduler
from engine.storage import PagedStorage, blocks_for

SHAPES = {
    "small": LlamaConfig(512, 128, 256, 2, 4, 2, 32, 8192, 1e-5, 10_000.0),
    "llama-1b": LlamaConfig(128_256, 2048, 8192, 16, 32, 8, 64, 131_072, 1e-5, 500_000.0),
}
"""Networks by name: `small` for any processor, `llama-1b` as Llama 3.2 1B."""
SUFFIX = 24
"""Tokens of its own that each request of a burst adds to the shared prefix."""
FIXED_ROWS = 16


class OutOfTime(Exception):
    """The budget was spent in the middle of a measurement."""


class Clock:
    """Seconds that a whole run may take."""

    def __init__(self, budget: float) -> None:
        self._start = time.perf_counter()
        self._budget = budget

    @property
    def spent(self) -> float:
        return time.perf_counter() - self._start

    def check(self) -> None:
        """Raises OutOfTime once the budget is spent."""
        if self.spent > self._budget:
            raise OutOfTime(f"the budget of {self._budget:g} s is spent")


# ---- the model


def seeded_weights(config: LlamaConfig, seed: int) -> dict[str, mx.array]:
    """bf16 weights by mlx-lm's Llama names, linear ones [out, in]; the head is tied to the embedding."""
    keys = iter(mx.random.split(mx.random.key(seed), 1 + 7 * config.num_hidden_layers))
    weights = {
        name: mx.random.normal(shape, mx.bfloat16, scale=gain / shape[1] ** 0.5, key=next(keys))
        for name, shape, gain in _matrices(config)
    }
    weights |= {name: mx.ones(config.hidden_size, mx.bfloat16) for name in _norms(config)}
    mx.eval(weights)
    return weights


def _matrices(c: LlamaConfig) -> Iterator[tuple[str, tuple[int, int], float]]:
    """Name, shape and gain over sqrt(fan-in): attention that is neither flat nor on one key, and heard."""
    hidden, inner = c.hidden_size, c.intermediate_size
    heads, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    yield "model.embed_tokens.weight", (c.vocab_size, hidden), 1.0
    for layer in range(c.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.self_attn.q_proj.weight", (heads, hidden), 1.5
        yield f"{prefix}.self_attn.k_proj.weight", (kv, hidden), 1.5
        yield f"{prefix}.self_attn.v_proj.weight", (kv, hidden), 1.0
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, heads), 4.0
        yield f"{prefix}.mlp.gate_proj.weight", (inner, hidden), 1.0
        yield f"{prefix}.mlp.up_proj.weight", (inner, hidden), 1.0
        yield f"{prefix}.mlp.down_proj.weight", (hidden, inner), 1.0


def _norms(c: LlamaConfig) -> Iterator[str]:
    yield "model.norm.weight"
    for layer in range(c.num_hidden_layers):
        yield f"model.layers.{layer}.input_layernorm.weight"
        yield f"model.layers.{layer}.post_attention_layernorm.weight"


class FixedRows(CanonicalModel):
    """Decode in products of always `FIXED_ROWS` rows, whoever they belong to, the missing ones zero.

    For backends whose product of one row has other bits than its place in a batch of several: where rows of
    one shape are independent of each other, this keeps them so, and reads the weights once for all.
    """

    def project(self, x: mx.array, linear: Linear) -> mx.array:
        if x.shape[1] > 1:
            return super().project(x, linear)
        rows = mx.pad(x[:, 0], [(0, -x.shape[0] % FIXED_ROWS), (0, 0)])
        parts = [super(FixedRows, self).project(part[None], linear)[0] for part in _parts(rows)]
        return mx.concatenate(parts)[: x.shape[0], None]


def _parts(rows: mx.array) -> list[mx.array]:
    return [rows[at : at + FIXED_ROWS] for at in range(0, rows.shape[0], FIXED_ROWS)]


class FastModel(FastRows, CanonicalModel):
    """What `--determinism fast` runs."""


MODES: dict[str, type[CanonicalModel]] = {"bits": CanonicalModel, "fixed": FixedRows, "fast": FastModel}
"""How decode makes its products: one a row, one of a fixed number of rows, one of all rows there are."""


def in_mode(model: CanonicalModel, mode: str) -> CanonicalModel:
    """A twin on the same weights that runs in another mode."""
    twin = copy.copy(model)
    twin.__class__ = MODES[mode]
    return twin


# ---- the engine


@dataclass(frozen=True)
class Setup:
    """Sizes in tokens; `slab` blocks that memory grows by (None: the store's own choice)."""

    prefix: int = 3700
    reply: int = 32
    block: int = 32
    grid: int = 32
    chunk: int = 256
    slab: int | None = None
    share: bool = True

    @property
    def length(self) -> int:
        """Tokens of one prompt of a burst."""
        return self.prefix + SUFFIX

    @property
    def shared(self) -> int:
        """Blocks that all prompts of a burst have in common."""
        return self.prefix // self.block

    def least_computed(self, ways: int, *, warm: bool) -> int:
        """Prompt tokens that a burst cannot do without: all of one prompt unless warm, the rest of others."""
        rest = self.length - self.shared * self.block
        return ways * rest + (0 if warm else self.shared * self.block)

    def least_blocks(self, ways: int) -> int:
        """Blocks of one copy of the prefix and of everyone's own rows (the last token writes none).

        All are taken to live at once: a peak below it says that some had gone before others grew.
        """
        own = blocks_for(self.length + self.reply - 1, self.block) - self.shared
        return self.shared + ways * own


@dataclass
class Client:
    """What one request was told, and when."""

    cached: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    failed: str = ""
    done: bool = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.cached = event.cached_tokens
        elif isinstance(event, Token):
            self.ids.append(event.id)
            self.logprobs.append(event.logprob)
            self.times.append(time.perf_counter())
        self.failed = event.message if isinstance(event, Failed) else self.failed
        self.done = self.done or isinstance(event, Done)


class NoText:
    """A codec for text that nobody reads."""

    def decode(self, ids: list[int]) -> str:
        return ""


class Bench:
    """Scheduler and paged store around one model, for bursts of up to `ways` requests."""

    def __init__(self, model: CanonicalModel, setup: Setup, ways: int, clock: Clock) -> None:
        self.setup, self.ways, self.clock = setup, ways, clock
        store = BlockStore(model.shape, setup.block)
        store.slab_blocks = setup.slab or store.slab_blocks
        # Room for everyone to have all of it alone: nothing here is about eviction.
        budget = (ways + 4) * (blocks_for(setup.length + setup.reply, setup.block) + 1)
        self.storage = PagedStorage(
            store, budget, granule=max(setup.block, setup.grid), share=setup.share, publish_generated=False
        )
        self.scheduler = Scheduler(
            model, self.storage, Sampler(), cast(TextCodec, NoText()), frozenset(),
            chunk=setup.chunk, max_batch=ways, adapted=cast(Callable[[Any], Any], None),
        )  # fmt: skip
        self._names = iter(range(10**9))

    def ask(
        self, prompts: Sequence[Sequence[int]], reply: int, salt: str = "", logprobs: int | None = 0
    ) -> list[Client]:
        """All at once, to the end. Raises OutOfTime, and RuntimeError when the engine failed one."""
        params = SamplingParams(max_tokens=reply, ignore_eos=True, logprobs=logprobs)
        clients = [Client() for _ in prompts]
        for client, prompt in zip(clients, prompts, strict=True):
            request = Request(f"r{next(self._names)}", tuple(prompt), params, salt)
            self.scheduler.add(request, client)
        while self.scheduler.busy:
            self.clock.check()
            self.scheduler.step()
        for client in clients:
            if client.failed or not client.done:
                raise RuntimeError(client.failed or "a request came to no end")
        return clients


# ---- what is measured


@dataclass(frozen=True)
class Burst:
    """One burst: seconds, tokens, bytes, each next to the least it could be."""

    wall_s: float
    last_first_token_s: float
    adopters: int
    cached_tokens: list[int]
    computed: int
    """Rows kept: of a grid wider than a block, a follower computes some pinned rows again and drops them."""
    least_computed: int
    kv_peak: int
    """Bytes, as those below, of the blocks that were live at once."""
    kv_least: int
    kv_reserved: int
    mlx_peak: int
    """Bytes that MLX held at most, over what it held before the burst."""

    @property
    def computed_ratio(self) -> float:
        return self.computed / self.least_computed

    @property
    def kv_ratio(self) -> float:
        return self.kv_peak / self.kv_least


def prompts(vocab: int, setup: Setup, ways: int, seed: int) -> list[list[int]]:
    """`ways` prompts with one prefix, of random ids."""
    draw = random.Random(seed)
    shared = draw.choices(range(vocab), k=setup.prefix)
    return [shared + draw.choices(range(vocab), k=SUFFIX) for _ in range(ways)]


def burst(bench: Bench, asked: Sequence[Sequence[int]], *, warm: bool) -> tuple[Burst, list[Client]]:
    """A burst on a store that holds nothing, or (`warm`) the whole blocks of the prefix."""
    setup, storage = bench.setup, bench.storage
    storage.reset()
    if warm:  # one token more, since the last one of a prompt is always computed
        bench.ask([asked[0][: setup.prefix + 1]], 1)
    storage.pool.mark_peak()
    before = bench.scheduler.counts["computed_tokens_total"]
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    start = time.perf_counter()
    clients = bench.ask(asked, setup.reply)
    wall = time.perf_counter() - start
    block = storage.store.block_bytes
    return Burst(
        wall_s=wall,
        last_first_token_s=max(client.times[0] for client in clients) - start,
        adopters=sum(client.cached > 0 for client in clients),
        cached_tokens=sorted({client.cached for client in clients}),
        computed=bench.scheduler.counts["computed_tokens_total"] - before,
        least_computed=setup.least_computed(len(asked), warm=warm),
        kv_peak=storage.pool.peak_live * block,
        kv_least=setup.least_blocks(len(asked)) * block,
        kv_reserved=storage.store.bytes_reserved,
        mlx_peak=max(mx.get_peak_memory() - held, 0),
    ), clients


@dataclass(frozen=True)
class Bits:
    """How many of a burst's replies equal the same request alone on a cold cache, and by how much not."""

    equal: int
    of: int
    same_ids: int
    largest_logprob_difference: float
    """Of the tokens before the first one that differs, that one included."""


def compare(clients: Sequence[Client], solos: Sequence[Client]) -> Bits:
    """Ids and logprobs, bit by bit."""
    pairs = list(zip(clients, solos, strict=True))
    return Bits(
        equal=sum((a.ids, a.logprobs) == (b.ids, b.logprobs) for a, b in pairs),
        of=len(pairs),
        same_ids=sum(a.ids == b.ids for a, b in pairs),
        largest_logprob_difference=max((_difference(a, b) for a, b in pairs), default=0.0),
    )


def _difference(a: Client, b: Client) -> float:
    same = next((i for i, (x, y) in enumerate(zip(a.ids, b.ids, strict=True)) if x != y), len(a.ids))
    noted = zip(a.logprobs[: same + 1], b.logprobs[: same + 1], strict=True)
    return max((abs((x or 0.0) - (y or 0.0)) for x, y in noted), default=0.0)


def decode_rate(times: Sequence[Sequence[float]]) -> float:
    """Tokens a second while all decode: those after the last first token, over the time they took."""
    start, end = max(own[0] for own in times), max(own[-1] for own in times)
    count = sum(at > start for own in times for at in own)
    return count / (end - start) if end > start else 0.0

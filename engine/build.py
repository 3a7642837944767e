"""One engine put together from its parts, so that a fault can replace exactly one of them.

Knows which parts there are and how they fit. Does not know what they do, threads or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.adapters import Adapters, adapters_for
from engine.config import EngineConfig
from engine.dense import DenseStorage
from engine.fast import fasten
from engine.host import HostStore
from engine.kv import BlockStore
from engine.model import Runner, load
from engine.probe import Promise, at_start
from engine.sampling import Sampler
from engine.scheduler import Scheduler
from engine.storage import PagedStorage, Storage
from engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class Parts:
    """What an engine is made of; `engine.faults` names replacements.

    `model` and `tokenizer` turn what was loaded into what runs. `reply` and `exchange`, which only the server
    uses, turn the type of a reply's bodies (`engine.replies`), and of what carries events to a client
    (`engine.exchange`), into the one that is built.
    """

    model: Callable[[Runner], Runner] = lambda runner: runner
    tokenizer: Callable[[Tokenizer], Tokenizer] = lambda tokenizer: tokenizer
    paged: type[PagedStorage] = PagedStorage
    dense: type[DenseStorage] = DenseStorage
    sampler: type[Sampler] = Sampler
    scheduler: type[Scheduler] = Scheduler
    reply: Callable[[type[Any]], type[Any]] = lambda kind: kind
    exchange: Callable[[type[Any]], type[Any]] = lambda kind: kind


@dataclass(frozen=True)
class Engine:
    """The assembled parts; all but the tokenizer belong to the thread that built them."""

    runner: Runner
    tokenizer: Tokenizer
    storage: Storage
    scheduler: Scheduler
    generated_reusable: bool
    adapters: Adapters
    promise: Promise


def build(config: EngineConfig, parts: Parts | None = None) -> Engine:
    """Load the model and assemble an engine. Raises ModelError when the model cannot be loaded."""
    parts = parts or Parts()
    loaded, tokenizer = load(config.model, seed=config.model_seed, grid=config.grid)
    sound = _mode(config)(loaded)
    known = at_start(sound, config.determinism)  # before a fault: it breaks the promise, does not lower it
    runner, tokenizer = parts.model(sound), parts.tokenizer(tokenizer)
    storage = _storage(config, parts, runner, known.generated_reusable)
    adapters = adapters_for(config, tokenizer, lambda adapted: parts.model(_mode(config)(adapted)))
    sampler = parts.sampler(tokenizer.eos_ids, runner.shape.on_host)
    scheduler = parts.scheduler(
        runner, storage, sampler, tokenizer, tokenizer.eos_ids,
        chunk=config.chunk, max_batch=config.max_batch, adapted=adapters.runner,
    )  # fmt: skip
    return Engine(runner, tokenizer, storage, scheduler, known.generated_reusable, adapters, known.promise)


def _mode(config: EngineConfig) -> Callable[[Runner], Runner]:
    return fasten if config.determinism == "fast" else lambda runner: runner


def _storage(config: EngineConfig, parts: Parts, runner: Runner, reusable: bool) -> Storage:
    granule = max(config.block_size, config.grid)
    if config.storage == "dense":
        budget = config.blocks * config.block_size
        return parts.dense(
            runner.shape, budget, granule=granule, share=config.share, publish_generated=reusable
        )
    store = (HostStore if runner.shape.on_host else BlockStore)(runner.shape, config.block_size)
    return parts.paged(
        store, config.blocks, granule=granule, share=config.share, publish_generated=reusable,
        reserve=config.reserve, hash_bytes=config.hash_bytes,
    )  # fmt: skip

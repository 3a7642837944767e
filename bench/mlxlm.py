"""mlx-lm's own generation loops on the same weights in the same process, to compare with.

Knows how to make mlx-lm's Llama of a shape and which loops time one reply and a batch. Does not know the
engine. Importing mlx-lm needs transformers, so nothing here is imported before it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import mlx.core as mx

from bench.inprocess import Clock, decode_rate
from engine.model import LlamaConfig


def network(config: LlamaConfig, weights: Mapping[str, mx.array]) -> Any:
    """mlx-lm's Llama on these weights. Raises whatever importing it raises."""
    from mlx_lm.models.llama import Model, ModelArgs

    model = Model(ModelArgs(model_type="llama", tie_word_embeddings=True, **asdict(config)))
    model.load_weights(list(weights.items()))
    model.eval()
    return model


def single(model: Any, prompt: Sequence[int], reply: int, clock: Clock) -> dict[str, float]:
    """One reply by `generate_step`: tokens a second of prefill and of decode."""
    from mlx_lm.generate import generate_step

    start, times = time.perf_counter(), []
    for _ in generate_step(mx.array(list(prompt)), model, max_tokens=reply):
        times.append(time.perf_counter())
        clock.check()
    return {"prefill_tokens_s": len(prompt) / (times[0] - start), "decode_tokens_s": decode_rate([times])}


def batch(model: Any, prompts: Sequence[Sequence[int]], reply: int, clock: Clock) -> dict[str, float]:
    """All at once by `BatchGenerator`, which computes and keeps every prompt for itself."""
    from mlx_lm.generate import BatchGenerator

    held = mx.get_active_memory()
    mx.reset_peak_memory()
    start = time.perf_counter()
    generator: Any = BatchGenerator(model, max_tokens=reply, completion_batch_size=len(prompts))
    times: dict[int, list[float]] = {
        uid: [] for uid in generator.insert([list(prompt) for prompt in prompts])
    }
    while any(len(own) < reply for own in times.values()):
        clock.check()
        for response in generator.next_generated():
            times[response.uid].append(time.perf_counter())
    generator.close()
    return {
        "wall_s": time.perf_counter() - start,
        "last_first_token_s": max(own[0] for own in times.values()) - start,
        "decode_tokens_s": decode_rate(list(times.values())),
        "mlx_peak": max(mx.get_peak_memory() - held, 0),
    }

"""From logits to a token: bias, temperature, seed, logprobs.

Knows one row of logits and one request's parameters. Does not know batches: a row is sampled alone, with
a key made of its own seed, choice and position, so that company never changes it (out/2, out/4, out/5).
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from engine.messages import SamplingParams
from engine.sequence import Sequence


@dataclass(frozen=True)
class Sampled:
    """A chosen token; `logprob` and `top` only when asked for, as fp32 values."""

    id: int
    logprob: float | None
    top: list[tuple[int, float]]


class Sampler:
    """Chooses a sequence's next token from fp32 logits [vocab]."""

    def sample(self, seq: Sequence, logits: mx.array) -> Sampled:
        params = seq.request.params
        logits = self.adjust(seq, logits)
        token = mx.argmax(logits) if params.temperature == 0 else self._draw(seq, logits)
        if params.logprobs is None:
            return Sampled(_int(token), None, [])
        return _with_logprobs(token, logits - mx.logsumexp(logits), params.logprobs)

    def adjust(self, seq: Sequence, logits: mx.array) -> mx.array:
        """Logits as the request wants them, before anything is chosen."""
        return _biased(logits, seq.request.params)

    def _draw(self, seq: Sequence, logits: mx.array) -> mx.array:
        params = seq.request.params
        key = mx.random.key((params.seed or 0) + seq.choice)
        step = mx.random.split(key, len(seq.generated) + 1)[len(seq.generated)]
        return mx.random.categorical(logits / params.temperature, key=step)


def _biased(logits: mx.array, params: SamplingParams) -> mx.array:
    if not params.logit_bias:
        return logits
    ids = mx.array(list(params.logit_bias))
    return logits.at[ids].add(mx.array(list(params.logit_bias.values()), dtype=logits.dtype))


def _with_logprobs(token: mx.array, logprobs: mx.array, count: int) -> Sampled:
    order = mx.argsort(-logprobs)[:count] if count else mx.array([], dtype=mx.uint32)
    mx.eval(token, logprobs, order)
    ids: list[int] = order.tolist()  # type: ignore[assignment]
    values: list[float] = logprobs[order].tolist() if count else []  # type: ignore[assignment]
    chosen = _int(token)
    logprob: float = logprobs[chosen].item()  # type: ignore[assignment]
    return Sampled(chosen, logprob, list(zip(ids, values, strict=True)))


def _int(value: mx.array) -> int:
    whole: int = value.item()  # type: ignore[assignment]
    return whole

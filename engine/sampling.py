"""From logits to a token: penalties, bias, temperature, top k, top p, min p, seed, logprobs.

Knows one row of logits and one request's parameters. Does not know batches: a row is sampled alone, from its
own tokens and with a key made of its own seed, choice and position, so that neither company nor the cache
ever changes it (out/2, out/4, out/5).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import mlx.core as mx

from engine import host
from engine.host import Ranked
from engine.messages import SamplingParams, Token
from engine.sequence import Sequence

GREEDY_BELOW = 1e-5
"""Temperatures under this take the largest logit: dividing by them would leave fp32's range."""
_SUPPRESSED = -1e9
"""Logit of an end of text that may not come yet; finite, so that logprobs are too (out/7)."""


@dataclass(frozen=True)
class Sampled:
    """A chosen token; `logprob` and `top` only when asked for, as fp32 values."""

    id: int
    logprob: float | None
    top: list[tuple[int, float]]


class Sampler:
    """Chooses a sequence's next token from fp32 logits [vocab].

    ``eos_ids``: what min_tokens holds back. ``on_host``: whether the logits are in Python's memory already.
    """

    def __init__(self, eos_ids: frozenset[int] = frozenset(), on_host: bool = False) -> None:
        self._eos_ids = eos_ids
        self._best: Callable[[mx.array], mx.array] = host.best if on_host else mx.argmax
        self._rank = host.ranked if on_host else _ranked

    def sample(self, seq: Sequence, logits: mx.array) -> Sampled:
        params = seq.request.params
        logits = self.adjust(seq, logits)
        token = self._best(logits) if params.temperature < GREEDY_BELOW else self._draw(seq, logits)
        if params.logprobs is None:
            return Sampled(_int(token), None, [])
        return Sampled(*self._rank([(token, logits)], params.logprobs)[0])

    def adjust(self, seq: Sequence, logits: mx.array) -> mx.array:
        """Logits as the request wants them, before anything is chosen.

        In this order: repetition penalty over prompt and generated tokens, presence and frequency penalties
        over generated tokens, bias, and no end of text before min_tokens.
        """
        params, generated = seq.request.params, seq.generated
        logits = _repetition(logits, seq.tokens, params.repetition_penalty)
        logits = _presence(logits, generated, params)
        logits = _biased(logits, params.logit_bias)
        early = len(generated) < params.min_tokens and not params.ignore_eos
        return _replaced(logits, self._eos_ids, _SUPPRESSED) if early else logits

    def score(self, tokens: Rows[int], logits: Rows[mx.array], count: int) -> list[Token]:
        """Logprobs of prompt tokens and the top `count`, each by the logits [vocab] of the row before it."""
        scored = self._rank([(mx.array(id), row) for id, row in zip(tokens, logits, strict=True)], count)
        return [Token(0, id, "", logprob, top) for id, logprob, top in scored]

    def _draw(self, seq: Sequence, logits: mx.array) -> mx.array:
        params = seq.request.params
        key = mx.random.key((params.seed or 0) + seq.choice)
        step = mx.random.split(key, len(seq.generated) + 1)[len(seq.generated)]
        return mx.random.categorical(narrowed(logits / params.temperature, params), key=step)


def narrowed(logits: mx.array, params: SamplingParams) -> mx.array:
    """Logits [vocab], already divided by the temperature, with -inf for what may not be drawn.

    top_k first, then top_p of the mass that is left, then min_p as a share of the best token's probability.
    Each is a floor under the logits: equal logits share their fate, whatever way a sort would put them, and
    the best token always stays.
    """
    if params.top_k < 1 and params.top_p == 1 and not params.min_p:
        return logits
    ranked = mx.sort(logits)[::-1]
    floor = ranked[min(max(params.top_k, 0), logits.size) - 1]  # -1, the lowest of all, where top_k is off
    if params.top_p < 1:
        floor = mx.maximum(floor, _nucleus(mx.where(ranked >= floor, ranked, -math.inf), params.top_p))
    if params.min_p:
        floor = mx.maximum(floor, ranked[0] + math.log(params.min_p))
    return mx.where(logits >= floor, logits, -math.inf)


def _nucleus(ranked: mx.array, mass: float) -> mx.array:
    """The lowest of the largest logits, [vocab] in falling order, that have this mass together."""
    before = mx.cumsum(mx.softmax(ranked), inclusive=False)
    return ranked[mx.maximum(mx.sum(before < mass), 1) - 1]  # a mass may be too small for fp32


def _repetition(logits: mx.array, tokens: Collection[int], penalty: float) -> mx.array:
    """Logits of tokens seen anywhere, divided by the penalty where positive and multiplied where negative."""
    if penalty == 1:
        return logits
    ids = mx.array(sorted(set(tokens)))
    seen = logits[ids]
    return mx.put_along_axis(logits, ids, mx.where(seen > 0, seen / penalty, seen * penalty), axis=0)


def _presence(logits: mx.array, generated: list[int], params: SamplingParams) -> mx.array:
    """Each generated token costs `presence_penalty` once and `frequency_penalty` every time it came."""
    once, each = params.presence_penalty, params.frequency_penalty
    if not once and not each:
        return logits
    return _biased(logits, {id: -once - each * count for id, count in Counter(generated).items()})


def _biased(logits: mx.array, bias: Mapping[int, float]) -> mx.array:
    if not bias:
        return logits
    return logits.at[mx.array(list(bias))].add(mx.array(list(bias.values()), dtype=logits.dtype))


def _replaced(logits: mx.array, ids: Collection[int], value: float) -> mx.array:
    if not ids:
        return logits
    return mx.put_along_axis(logits, mx.array(sorted(ids)), mx.array(value, dtype=logits.dtype), axis=0)


def _ranked(tokens: Rows[tuple[mx.array, mx.array]], count: int) -> list[Ranked]:
    """Each token among the logits [vocab] that it was chosen from. Evaluated once for all."""
    ranked = [_among(token, logits, count) for token, logits in tokens]
    mx.eval(ranked)
    return [_values(*parts) for parts in ranked]


def _among(token: mx.array, logits: mx.array, count: int) -> tuple[mx.array, ...]:
    """The token, its logprob, the top `count` ids and theirs."""
    logprobs = logits - mx.logsumexp(logits)
    order = mx.argsort(-logprobs)[:count] if count else mx.array([], dtype=mx.uint32)
    return token, logprobs[token], order, logprobs[order]


def _values(token: mx.array, own: mx.array, order: mx.array, best: mx.array) -> Ranked:
    ids: list[int] = order.tolist()  # type: ignore[assignment]
    values: list[float] = best.tolist()  # type: ignore[assignment]
    logprob: float = own.item()  # type: ignore[assignment]
    return _int(token), logprob, list(zip(ids, values, strict=True))


def _int(value: mx.array) -> int:
    whole: int = value.item()  # type: ignore[assignment]
    return whole

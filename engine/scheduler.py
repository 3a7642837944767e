"""Which sequence does what next: admit, prefill in chunks, decode in a batch, finish. One step at a time.

Knows sequences, a storage, a model and a sampler by their interfaces. Does not know arrays, blocks, HTTP
or threads: whoever calls `step` does so from one thread.

A waiting sequence holds nothing. It is admitted in order of arrival, but steps aside while a running one
computes the block it would compute next (adopt/3); it is looked at again every step, so that when that
leader goes, the first follower leads (adopt/4).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import replace
from typing import Any, TypeVar

import mlx.core as mx

from engine.messages import (
    Adapter,
    Done,
    Failed,
    Finished,
    Prompted,
    Request,
    Sink,
    Started,
    TextCodec,
    Token,
)
from engine.model import DecodeRow, Runner
from engine.output import Output
from engine.sampling import Sampler
from engine.sequence import Phase, Sequence
from engine.storage import Storage

T = TypeVar("T")


class Live:
    """A request's sink, and what its choices have said so far."""

    def __init__(self, request: Request, sink: Sink, codec: TextCodec) -> None:
        self.request = request
        self.sink = sink
        self.cached = 0
        self.generated = 0
        self.open = request.params.n
        self.trace: dict[str, Any] = {}
        self.outputs = [Output(codec, request.params.stop) for _ in range(request.params.n)]


class Scheduler:
    """Owns the queue and the batch; every request leaves through `_leave`."""

    def __init__(
        self, runner: Runner, storage: Storage, sampler: Sampler, codec: TextCodec,
        eos_ids: frozenset[int], *, chunk: int, max_batch: int, adapted: Callable[[Adapter], Runner],
    ) -> None:  # fmt: skip
        self.runner = runner
        self.adapted = adapted
        self.storage = storage
        self.sampler = sampler
        self.codec = codec
        self.eos_ids = eos_ids
        self.chunk = chunk
        self.max_batch = max_batch
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.live: dict[str, Live] = {}
        self.counts = dict.fromkeys(_COUNTS, 0)

    # -- from outside -----------------------------------------------------------------------------------

    def add(self, request: Request, sink: Sink) -> None:
        """Queue a request. One that samples without a seed gets one of its own."""
        if request.params.seed is None:
            request = replace(request, params=replace(request.params, seed=secrets.randbits(48)))
        seq = Sequence(request)
        self.storage.prepare(seq)
        self.live[request.id] = Live(request, sink, self.codec)
        self.waiting.append(seq)
        self.counts["requests_total"] += 1

    def cancel(self, request_id: str) -> None:
        """Drop a request whatever its phase; nothing more is sent to its sink."""
        if self.live.pop(request_id, None) is not None:
            self.counts["cancelled_total"] += 1
            self._leave(request_id)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> None:
        """Admit, one prefill chunk, one decode step for all that decode."""
        self._admit()
        decoding = [seq for seq in self.running if seq.phase is Phase.DECODE]
        self._prefill_chunk()
        for batch in _by_adapter([seq for seq in decoding if seq.phase is Phase.DECODE]):
            self._decode(batch)
        self.counts["steps"] += 1

    def problems(self) -> list[str]:
        """What is inconsistent, in words; empty when sound."""
        found = self.storage.problems(self.running)
        if any(seq.table or seq.holding is not None for seq in self.waiting):
            found.append("a waiting sequence holds storage")
        return found

    # -- admission --------------------------------------------------------------------------------------

    def _admit(self) -> None:
        for seq in list(self.waiting):
            if self._rows() + seq.request.params.n > self.max_batch:
                return
            if self.storage.blocked_by(seq, self.running):
                continue
            if not self.storage.admit(seq):
                return
            self.waiting.remove(seq)
            self._start(seq)

    def _rows(self) -> int:
        return sum(1 + seq.forks for seq in self.running)

    def _start(self, seq: Sequence) -> None:
        seq.phase = Phase.PREFILL
        self.running.append(seq)
        live = self.live[seq.request.id]
        live.cached = seq.cached
        seq.trace["step_admitted"] = self.counts["steps"]
        if not seq.adopts:
            seq.trace["missed"] = "prompt_logprobs"
        live.trace = seq.trace
        self.counts["hits_tokens_total"] += seq.cached
        live.sink(Started(seq.cached, seq.trace if seq.request.trace else None))

    # -- prefill ----------------------------------------------------------------------------------------

    def _prefill_chunk(self) -> None:
        """Spend one chunk's tokens on prefilling sequences, oldest first."""
        budget = self.chunk
        for seq in [seq for seq in self.running if seq.phase is Phase.PREFILL]:
            if budget <= 0:
                return
            budget -= self._prefill(seq, budget)

    def _prefill(self, seq: Sequence, budget: int) -> int:
        """Compute up to `budget` rows of the prompt, whole tiles of the grid; the rows it cost."""
        grid, start = self.runner.grid, seq.computed
        line = start - start % grid
        stop = min(seq.prompt_tokens, line + max(grid, budget - budget % grid))
        logits = self._guarded([seq], lambda: self._compute(seq, start, stop))
        if logits is not None:
            seq.computed = stop
            self.counts["computed_tokens_total"] += stop - start
            self.storage.publish(seq)
            if stop == seq.prompt_tokens:
                self._first_token(seq, logits)
        return stop - line

    def _compute(self, seq: Sequence, start: int, stop: int) -> mx.array:
        view = self.storage.view(seq, stop)
        if seq.request.params.prompt_logprobs is None:
            return self._runner(seq).prefill(view, seq.tokens, start, stop)
        rows = self._runner(seq).prefill_logits(view, seq.tokens, start, stop)
        self._score(seq, start, rows)
        return rows[-1]

    def _score(self, seq: Sequence, start: int, rows: Rows[mx.array]) -> None:
        """Note the prompt tokens that follow rows [start, ...), over whatever an earlier prefill noted."""
        count = seq.request.params.prompt_logprobs or 0
        following = seq.request.prompt[start + 1 :]
        seq.scored[start:] = [
            self.sampler.score(token, row, count) for token, row in zip(following, rows, strict=False)
        ]

    def _runner(self, seq: Sequence) -> Runner:
        adapter = seq.request.adapter
        return self.runner if adapter is None else self.adapted(adapter)

    def _first_token(self, seq: Sequence, logits: mx.array) -> None:
        live = self.live[seq.request.id]
        if not seq.adopts and not live.generated:
            live.sink(Prompted((Token(0, seq.request.prompt[0], ""), *seq.scored)))
        forks = [self.storage.fork(seq, choice + 1) for choice in range(seq.forks)]
        self.running.extend(forks)
        for branch in [seq, *forks]:
            branch.phase = Phase.DECODE
            self._emit(branch, logits)

    # -- decode -----------------------------------------------------------------------------------------

    def _decode(self, batch: list[Sequence]) -> None:
        """One token for each of a batch that has one adapter."""
        logits = self._guarded(batch, lambda: self._runner(batch[0]).decode(self._rows_of(batch)))
        for seq, row in zip(batch, logits or [], strict=False):
            seq.computed += 1
            self.storage.publish(seq)
            self._emit(seq, row)

    def _rows_of(self, batch: list[Sequence]) -> Rows[DecodeRow]:
        return [
            DecodeRow(self.storage.view(seq, seq.computed + 1), seq.tokens[seq.computed], seq.computed)
            for seq in batch
        ]

    def _emit(self, seq: Sequence, logits: mx.array) -> None:
        """Sample, tell the client, and see whether this was the last token."""
        live, params = self.live[seq.request.id], seq.request.params
        sampled = self.sampler.sample(seq, logits)
        seq.tokens.append(sampled.id)
        live.generated += 1
        self.counts["generated_tokens_total"] += 1
        output = live.outputs[seq.choice]
        ends = sampled.id in self.eos_ids and not params.ignore_eos
        text = "" if ends else output.push(sampled.id, len(seq.generated) >= params.min_tokens)
        live.sink(Token(seq.choice, sampled.id, text, sampled.logprob, sampled.top))
        if ends or output.stopped:
            self._finish(seq, "stop")
        elif len(seq.generated) >= params.max_tokens:
            self._finish(seq, "length")

    # -- the way out ------------------------------------------------------------------------------------

    def _finish(self, seq: Sequence, reason: str) -> None:
        live = self.live[seq.request.id]
        live.sink(Finished(seq.choice, reason, live.outputs[seq.choice].finish()))
        self._drop(seq)
        live.open -= 1
        if not live.open:
            del self.live[seq.request.id]
            self.counts["finished_total"] += 1
            live.trace["step_finished"] = self.counts["steps"]
            trace = live.trace if seq.request.trace else None
            live.sink(Done(seq.prompt_tokens, live.cached, live.generated, trace))

    def _guarded(self, batch: list[Sequence], compute: Callable[[], T]) -> T | None:
        """A forward that raises fails the requests in it, publishes nothing and leaks nothing (life/6)."""
        try:
            return compute()
        except Exception as error:
            for request_id in {seq.request.id for seq in batch}:
                self._fail(request_id, f"the model failed: {error}")
            return None

    def _fail(self, request_id: str, message: str) -> None:
        live = self.live.pop(request_id)
        self.counts["failed_total"] += 1
        self._leave(request_id)
        live.sink(Failed(500, message))

    def _leave(self, request_id: str) -> None:
        self.waiting = [seq for seq in self.waiting if seq.request.id != request_id]
        for seq in [seq for seq in self.running if seq.request.id == request_id]:
            self._drop(seq)

    def _drop(self, seq: Sequence) -> None:
        seq.phase = Phase.DONE
        self.running.remove(seq)
        self.storage.release(seq)


def _by_adapter(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Batches of sequences with one adapter each, in order of arrival."""
    batches: dict[Adapter | None, list[Sequence]] = {}
    for seq in sequences:
        batches.setdefault(seq.request.adapter, []).append(seq)
    return list(batches.values())


_COUNTS = (
    "steps",
    "requests_total",
    "finished_total",
    "cancelled_total",
    "failed_total",
    "hits_tokens_total",
    "computed_tokens_total",
    "generated_tokens_total",
)

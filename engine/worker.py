"""The engine thread: it alone builds, uses and drops the model and the stored rows.

Knows the thread, its inbox and the published statistics. Does not know HTTP, nor how steps work. Other
threads exchange plain values with it: requests and commands in, events and snapshots out. Nothing here
waits for a client; a cancel lands between two steps, since an evaluation cannot be interrupted.

An error is one request's end where it can be laid to one (`scheduler.py`, and here a sink that raises), the
end of all that live where it cannot, and the thread's own end where what they held cannot be given back.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, NamedTuple

import mlx.core as mx

from engine import cores, memory
from engine.build import Engine, Parts, build
from engine.config import EngineConfig
from engine.messages import Adapter, Event, Failed, Request, RequestError, Sink
from engine.storage import PagedStorage
from engine.tokenizer import Tokenizer

_QUIET = 0.1
"""Seconds without work or a word from outside after which memory is given back, once (foot/2)."""


class Told(NamedTuple):
    """An event on its way, and whose it is."""

    sink: Sink
    event: Event
    request_id: str


class Worker:
    """One engine and its thread. `start` returns when the model is loaded, or raises what went wrong."""

    def __init__(self, config: EngineConfig, parts: Parts | None = None) -> None:
        self.config = config
        self.model_name = config.model
        self._parts = parts
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ready: Future[None] = Future()
        self._stopping = False
        self._draining = False
        self._rejected = 0
        self._snapshot: dict[str, Any] = {}
        self._outbox: list[Told] = []
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -- any thread -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()
        try:
            self._ready.result()
        except Exception:
            self._thread.join()
            raise

    def stop(self, timeout: float = 10.0) -> None:
        """End the thread after the step at hand; requests in flight fail with 503."""
        self._post(self._shut_down)
        self._thread.join(timeout)

    def drain(self) -> None:
        """Take nothing new: what arrives from now on is answered with 503, what runs goes on to its end."""
        self._post(self._close)

    @property
    def drained(self) -> bool:
        """Whether the door is closed and nobody is left inside."""
        seen = self._snapshot
        return not self.alive or (seen["draining"] and not seen["running"] + seen["waiting"])

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def max_positions(self) -> int:
        return self._max_positions

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The adapters served now, by name."""
        return self._engine.adapters.served

    def submit(self, request: Request, sink: Sink) -> None:
        """Queue a request. Raises RequestError when it can never be served; whatever else keeps it out is
        told its sink, as it is when the id is that of a request which has not ended."""
        try:
            self._check(request)
        except RequestError:
            self._post(self._reject)
            raise
        self._post(lambda: self._accept(request, sink))

    def cancel(self, request_id: str) -> None:
        self._post(lambda: self._engine.scheduler.cancel(request_id))

    def stats(self) -> dict[str, Any]:
        return self._snapshot

    def call(self, name: str, **kwargs: Any) -> Future[Any]:
        """Run between steps: "reset", "mark", "overwrite" (block), "adapter" (adapter, seed), "integrity"."""
        future: Future[Any] = Future()
        self._post(lambda: _answer(future, lambda: getattr(self, f"_call_{name}")(**kwargs)))
        return future

    # -- engine thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        """The thread's life. MLX asks every thread to end its streams: left to the thread's own end, that
        may meet an interpreter which is going down already, and aborts the process."""
        try:
            if self._opened():
                self._work()
        finally:
            mx.clear_streams()

    def _opened(self) -> bool:
        try:
            memory.bound_cache()
            cores.take_turns()
            self._open()
        except Exception as error:
            self._ready.set_exception(error)
            return False
        self._ready.set_result(None)
        return True

    def _work(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except Exception as error:
                self._start_over(error)

    def _turn(self) -> None:
        self._take_in()
        if self._engine.scheduler.busy and not self._stopping:
            self._engine.scheduler.step()
        self._publish()
        self._deliver()

    def _start_over(self, error: Exception) -> None:
        """An error that is no single request's fails all of them. Raises, which ends the thread, so that
        `alive` tells, when the engine is not sound without them either."""
        scheduler = self._engine.scheduler
        try:
            scheduler.fail_all(f"the engine failed: {error}")
            if problems := scheduler.problems():
                raise RuntimeError(f"the engine is not sound: {'; '.join(problems)}") from error
        finally:
            self._deliver()

    def _open(self) -> None:
        self._engine: Engine = build(self.config, self._parts)
        self._tokenizer = self._engine.tokenizer
        self._max_positions = self._engine.runner.shape.max_positions
        self._vocab = self._engine.runner.shape.vocab
        self._lasting = self._always()
        self._publish()

    def _take_in(self) -> None:
        """Do what was asked since the last step; wait only when there is nothing else to do."""
        if not self._engine.scheduler.busy and not self._outbox:
            self._wait()()
        while True:
            try:
                self._inbox.get_nowait()()
            except queue.Empty:
                return

    def _wait(self) -> Callable[[], None]:
        """The next thing asked. A quiet moment before it gives memory back, not the end of each request."""
        try:
            return self._inbox.get(timeout=_QUIET)
        except queue.Empty:
            self._trim()
            return self._inbox.get()

    def _trim(self) -> None:
        self._engine.storage.trim()
        memory.give_back()
        self._publish()

    def _accept(self, request: Request, sink: Sink) -> None:
        refusal = self._closed() or self._added(request, sink)
        if refusal is not None:
            self._reject()
            self._outbox.append(Told(sink, refusal, request.id))

    def _closed(self) -> Failed | None:
        """Why nobody is let in now."""
        if self._stopping:
            return Failed(503, "the server is shutting down")
        if len(self._engine.scheduler.waiting) >= self.config.max_queue:
            return Failed(503, f"the queue is full ({self.config.max_queue} requests are waiting)")
        return Failed(503, "the server is draining") if self._draining else None

    def _added(self, request: Request, sink: Sink) -> Failed | None:
        """Why this one is not let in."""
        try:
            self._engine.scheduler.add(
                request, lambda event: self._outbox.append(Told(sink, event, request.id))
            )
        except RequestError as error:
            return Failed(409, str(error), "invalid_request_error", error.param)
        except Exception as error:
            return Failed(500, f"the engine failed: {error}")
        return None

    def _reject(self) -> None:
        self._rejected += 1

    def _close(self) -> None:
        self._draining = True

    def _deliver(self) -> None:
        """Tell clients what happened after the snapshot shows it: whoever has its last event finds itself
        in the statistics. A sink that raises hears, with the next snapshot, that it failed, and no more."""
        outbox, self._outbox = self._outbox, []
        lost: dict[Sink, tuple[Told, Exception]] = {}
        for told in outbox:
            if told.sink not in lost:
                try:
                    told.sink(told.event)
                except Exception as error:
                    lost[told.sink] = told, error
        for told, raised in lost.values():
            self._lose(told, f"an event could not be delivered: {raised}")

    def _lose(self, told: Told, message: str) -> None:
        """End a request whose sink raised; that it failed is its last event even where it had ended well."""
        if isinstance(told.event, Failed) or self._engine.scheduler.fail(told.request_id, message):
            return
        self._outbox.append(told._replace(event=Failed(500, message)))

    def _always(self) -> dict[str, Any]:
        """What of the statistics never changes."""
        engine, config = self._engine, self.config
        return {
            "storage": config.storage,
            "sharing": config.share,
            "model": self.model_name,
            "vocab": engine.tokenizer.vocab_size,
            "granule": engine.storage.granule,
            "chunk": config.chunk,
            "max_batch": config.max_batch,
            "blas": config.blas,
            "determinism": config.determinism,
            "grade": engine.promise.grade,
            "generated_reusable": engine.generated_reusable,
        }

    def _publish(self) -> None:
        """Replace the snapshot: consistent, since nothing moves between two steps."""
        engine, scheduler = self._engine, self._engine.scheduler
        self._snapshot = {
            "sequence": self._snapshot.get("sequence", 0) + 1,
            **self._lasting,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "draining": self._draining,
            "rejected_total": self._rejected,
            "mlx_active_bytes": mx.get_active_memory(),
            "mlx_cache_bytes": mx.get_cache_memory(),
            "mlx_peak_bytes": mx.get_peak_memory(),
            **scheduler.counts,
            **engine.storage.stats(),
        }

    def _shut_down(self) -> None:
        self._stopping = True
        self._engine.scheduler.fail_all("the server is shutting down", 503)

    def _check(self, request: Request) -> None:
        prompt, params = request.prompt, request.params
        longest = request.longest
        if not prompt:
            raise RequestError("the prompt is empty; at least one token is needed", "prompt")
        if params.n > self.config.max_batch:
            raise RequestError(f"n is {params.n}; at most {self.config.max_batch} run at once", "n")
        if longest > self._max_positions:
            raise RequestError(
                f"prompt ({len(prompt)}) and max_tokens ({params.max_tokens}) exceed the model's"
                f" {self._max_positions} positions",
                "max_tokens" if len(prompt) <= self._max_positions else "prompt",
            )
        if not self._engine.storage.can_ever_hold(len(prompt), longest, params.n):
            raise RequestError(
                f"prompt ({len(prompt)}) and max_tokens ({params.max_tokens}) can never fit the pool of"
                f" {self.config.blocks} blocks of {self.config.block_size} tokens",
                "prompt",
            )
        # Last, so that no more ids are looked at than fit.
        foreign = next((i for i in prompt if not 0 <= i < self._vocab), None)
        if foreign is not None:
            raise RequestError(f"token id {foreign} is not in 0..{self._vocab - 1}", "prompt")

    # -- commands ---------------------------------------------------------------------------------------

    def _call_reset(self) -> dict[str, Any]:
        done = self._engine.storage.reset()
        memory.give_back()
        return done

    def _call_mark(self) -> dict[str, Any]:
        """Let the peak gauges start again from what is live now."""
        if isinstance(self._engine.storage, PagedStorage):
            self._engine.storage.pool.mark_peak()
        mx.reset_peak_memory()
        self._publish()
        return {"marked": True, "sequence": self._snapshot["sequence"]}

    def _call_overwrite(self, block: int) -> dict[str, Any]:
        """Test mode: replace a live block's rows by their negatives; every borrower must notice."""
        storage = self._engine.storage
        if not isinstance(storage, PagedStorage):
            raise RequestError("only paged storage has blocks", "block")
        if not (storage.pool.refs(block) or storage.index.entry(block)):
            raise RequestError(f"block {block} is not live", "block")
        store = storage.store
        for layer in range(store.shape.layers):
            k, v = store.rows(layer, [block])
            mx.eval(k, v)
            store.put(layer, block, 0, -k[0], -v[0])
        store.settle()
        return {"overwritten": block}

    def _call_adapter(self, adapter: str, seed: int) -> dict[str, Any]:
        """Test mode: other weights under an adapter's name."""
        return asdict(self._engine.adapters.reload(adapter, seed))

    def _call_integrity(self) -> dict[str, Any]:
        problems = self._engine.scheduler.problems()
        return {"ok": not problems, "problems": problems}

    def _post(self, action: Callable[[], None]) -> None:
        self._inbox.put(action)


def _answer(future: Future[Any], compute: Callable[[], Any]) -> None:
    """Compute for whoever asked; nothing when it no longer waits."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(compute())
    except Exception as error:
        future.set_exception(error)

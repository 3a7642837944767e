"""Faults of endings: what a request leaves behind, or takes along.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine.faults.registry import fault
from engine.faults.surgery import blank
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.storage import PagedStorage


@fault("leak_ref_on_abort", "C03", "life/1 life/2", seam="scheduler")
class LeakRefOnAbort(Scheduler):
    """A request whose client went away keeps its blocks pinned for ever."""

    def cancel(self, request_id: str) -> None:
        for seq in self.running:
            if seq.request.id == request_id:
                seq.table = []
        super().cancel(request_id)


@fault("leak_ref_on_stop", "C03", "life/1", seam="scheduler")
class LeakRefOnStop(Scheduler):
    """A reply that a stop string ends keeps its blocks pinned for ever."""

    def _finish(self, seq: Sequence, reason: str) -> None:
        if reason == "stop":
            seq.table = []
        super()._finish(seq, reason)


@fault("leak_ref_on_failure", "C03", "life/1 life/6", seam="scheduler")
class LeakRefOnFailure(Scheduler):
    """A request whose forward failed keeps its blocks pinned for ever."""

    def fail(self, request_id: str, message: str, status: int = 500) -> bool:
        for seq in self.running:
            if seq.request.id == request_id:
                seq.table = []
        return super().fail(request_id, message, status)


@fault("spread_failure", "C03", "life/6", seam="scheduler")
class SpreadFailure(Scheduler):
    """One forward that fails ends every request there is."""

    @contextmanager
    def _guard(self, *batch: Sequence) -> Iterator[None]:
        with super()._guard(*self.running, *self.waiting):
            yield


@fault("ignore_disconnect", "C03", "life/4", seam="scheduler")
class IgnoreDisconnect(Scheduler):
    """The engine goes on to the end of a reply that nobody reads any more."""

    def cancel(self, request_id: str) -> None:
        live = self.live.get(request_id)
        if live is not None:
            live.sink = lambda event: None


@fault("wipe_on_abort", "C04", "life/3", seam="scheduler")
class WipeOnAbort(Scheduler):
    """When a client goes away its blocks are cleared at once, though siblings still read them."""

    def cancel(self, request_id: str) -> None:
        for seq in [seq for seq in self.running if seq.request.id == request_id]:
            assert isinstance(self.storage, PagedStorage)
            blank(self.storage, seq.table)
        super().cancel(request_id)


@fault("leak_ref_before_first_token", "C03", "life/1", seam="scheduler")
class LeakRefBeforeFirstToken(Scheduler):
    """A client that goes away before its first token leaves its blocks pinned; later ones leave nothing."""

    def cancel(self, request_id: str) -> None:
        for seq in self.running:
            if seq.request.id == request_id and not seq.generated:
                seq.table = []
        super().cancel(request_id)


@fault("leak_ref_in_last_step", "C03", "life/1", seam="scheduler")
class LeakRefInLastStep(Scheduler):
    """A client that goes away just before its last token leaves its blocks pinned; others leave nothing."""

    def cancel(self, request_id: str) -> None:
        for seq in self.running:
            if seq.request.id == request_id and len(seq.generated) == seq.request.params.max_tokens - 1:
                seq.table = []
        super().cancel(request_id)


@fault("leak_ref_on_refusal", "C03", "life/1", seam="paged")
class LeakRefOnRefusal(PagedStorage):
    """A request that is refused because it can never fit leaves a block behind that nobody gives back."""

    def can_ever_hold(self, prompt: int, longest: int, choices: int) -> bool:
        fits = super().can_ever_hold(prompt, longest, choices)
        if not fits:
            self._take()
        return fits


@fault("leak_ref_when_queued", "C03", "life/1", seam="paged")
class LeakRefWhenQueued(PagedStorage):
    """A queued request pins what it will adopt; if its client leaves before it starts, that stays pinned."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._early: dict[Sequence, list[int]] = {}

    def prepare(self, seq: Sequence) -> None:
        super().prepare(seq)
        self._early[seq] = [entry.block for entry in self.matched(seq)]
        self.pool.retain(self._early[seq])

    def admit(self, seq: Sequence) -> bool:
        self.pool.release(self._early.pop(seq, []))
        return super().admit(seq)


@fault("leak_block_for_want_of_room", "C03", "life/1", seam="paged")
class LeakBlockForWantOfRoom(PagedStorage):
    """A request that had to wait for room takes a block that nobody gives back, however it ends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refused: set[Sequence] = set()

    def admit(self, seq: Sequence) -> bool:
        if super().admit(seq):
            return True
        if seq not in self._refused and self.pool.free:
            self._refused.add(seq)
            self.pool.take()
        return False

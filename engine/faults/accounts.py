"""Faults of accounts: usage, counters and gauges that say what is not so.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import replace
from typing import Any

from engine.faults.registry import fault
from engine.fields import Json
from engine.index import Entry
from engine.replies import Choice, Usage
from engine.scheduler import Live, Scheduler
from engine.sequence import Sequence
from engine.storage import PagedStorage


@fault("report_without_reuse", "C10", "foot/1 store/1", seam="paged")
class ReportWithoutReuse(PagedStorage):
    """Usage says that the prefix was adopted; every row of it was computed and stored once more."""

    def matched(self, seq: Sequence) -> list[Entry]:
        return []

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        found = super().matched(seq)
        super().adopt(seq, blocks)
        seq.cached = len(found) * self.size // self.granule * self.granule
        seq.epoch = -1 if found else self.epoch


@fault("count_cached_on_arrival", "C10", "adopt/9", seam="paged")
class CountCachedOnArrival(PagedStorage):
    """A queued request reports what was stored when it came, though it was evicted before the start."""

    def prepare(self, seq: Sequence) -> None:
        super().prepare(seq)
        seq.trace["early"] = len(self.matched(seq)) * self.size // self.granule * self.granule

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        seq.cached = max(seq.cached, seq.trace.pop("early", 0))


@fault("usage_counts_per_choice", "C10", "count/2", seam="scheduler")
class UsageCountsPerChoice(Scheduler):
    """With n = 4 the usage says that four times as many tokens were cached."""

    def _account(self, live: Live, seq: Sequence) -> None:
        super()._account(live, seq)
        live.cached *= live.request.params.n


@fault("count_recompute_as_hit", "C11", "count/6", seam="scheduler")
class CountRecomputeAsHit(Scheduler):
    """A preempted request that finds its own rows again counts them as another hit."""

    def _start(self, seq: Sequence) -> None:
        if self.live[seq.request.id].admitted:
            self.counts["hits_tokens_total"] += seq.cached
        super()._start(seq)


@fault("count_hits_twice", "C11", "count/3", seam="scheduler")
class CountHitsTwice(Scheduler):
    """The hit counter rises twice for each hit, so a dashboard shows a rate that no reply tells of."""

    def _account(self, live: Live, seq: Sequence) -> None:
        super()._account(live, seq)
        self.counts["hits_tokens_total"] += seq.cached


@fault("cached_counts_as_free", "C11", "count/4", seam="paged")
class CachedCountsAsFree(PagedStorage):
    """The free gauge counts cached blocks too, so that more blocks are shown than there are."""

    def stats(self) -> dict[str, Any]:
        shown = super().stats()
        return shown | {"paged_blocks_free": shown["paged_block_budget"] - shown["paged_blocks_referenced"]}


@fault("miss_without_reason", "C11", "count/5", seam="scheduler")
class MissWithoutReason(Scheduler):
    """A cold prompt is counted neither as a hit nor as a miss."""

    def _account(self, live: Live, seq: Sequence) -> None:
        super()._account(live, seq)
        self.counts["missed_cold_total"] = 0


@fault("everything_but_one_is_cached", "C10", "count/1 key/6", seam="paged")
class EverythingButOneIsCached(PagedStorage):
    """Usage says of each prompt, even a new one, that all but its last token were cached."""

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        seq.cached = seq.prompt_tokens - 1


@fault("ledger_forgets_values", "C11", "count/4", seam="paged")
class LedgerForgetsValues(PagedStorage):
    """The bytes in use count keys alone, so that memory runs out at half of what a dashboard shows."""

    def stats(self) -> dict[str, Any]:
        shown = super().stats()
        return shown | {"paged_bytes_in_use": shown["paged_bytes_in_use"] // 2}


@fault("no_cached_count_when_whole", "C10", "count/2", seam="reply")
class NoCachedCountWhenWhole:
    """A reply that is not streamed says that nothing was cached, where a stream of its prompt tells."""

    def whole(self, choices: Rows[Choice], usage: Usage) -> Json:
        body: Json = super().whole(choices, replace(usage, cached=0))  # type: ignore[misc]
        return body

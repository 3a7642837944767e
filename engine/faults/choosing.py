"""Faults of how tokens are chosen, and of what is said about the choice.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import mlx.core as mx

from engine.faults.registry import fault
from engine.index import Entry
from engine.sampling import Sampled, Sampler
from engine.sequence import Sequence
from engine.storage import PagedStorage


@fault("penalty_window_from_computed_tokens", "C21", "out/4", seam="sampler")
class PenaltyWindowFromComputedTokens(Sampler):
    """Penalties forget the adopted part of the prompt: a warm reply repeats what a cold one avoids."""

    def adjust(self, seq: Sequence, logits: mx.array) -> mx.array:
        seen = copy(seq)
        seen.tokens = seq.tokens[seq.cached :]
        seen.request = replace(seq.request, prompt=seq.request.prompt[seq.cached :])
        return super().adjust(seen, logits)


@fault("seed_counts_computed_tokens", "C21", "out/4", seam="sampler")
class SeedCountsComputedTokens(Sampler):
    """What a seed draws depends on how much of the prompt was computed: warm replies differ from cold."""

    def _draw(self, seq: Sequence, logits: mx.array) -> mx.array:
        params = replace(seq.request.params, seed=(seq.request.params.seed or 0) + seq.cached)
        shifted = copy(seq)
        shifted.request = replace(seq.request, params=params)
        return super()._draw(shifted, logits)


@fault("guess_prompt_logprobs", "C21", "out/4 store/7", seam="paged")
class GuessPromptLogprobs(PagedStorage):
    """A request for prompt logprobs adopts like any other, and says nothing about the part it adopted."""

    def matched(self, seq: Sequence) -> list[Entry]:
        limit = (seq.prompt_tokens - 1) // self.size
        return self.index.match(seq.root, seq.keys[:limit], seq.tokens)


@fault("drift_with_traffic", "C21", "out/6", seam="sampler")
class DriftWithTraffic(Sampler):
    """A prompt that comes back after eight others gets slightly other logits than it had before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lately: dict[tuple[int, ...], list[str]] = {}
        """Prompt -> requests with other prompts since it last came."""

    def adjust(self, seq: Sequence, logits: mx.array) -> mx.array:
        logits, prompt = super().adjust(seq, logits), tuple(seq.request.prompt)
        if not seq.generated:
            seq.trace["drifts"] = len(self._lately.get(prompt, [])) >= 8
            self._lately[prompt] = []
            for other in self._lately.keys() - {prompt}:
                self._lately[other].append(seq.request.id)
        pattern = mx.where(mx.arange(logits.shape[0]) % 2 == 0, 1e-3, -1e-3)
        return logits + pattern if seq.trace.get("drifts") else logits


@fault("logits_as_logprobs", "C21", "out/7", seam="sampler")
class LogitsAsLogprobs(Sampler):
    """Logprobs are logits that nobody normalised: some are above 0."""

    def sample(self, seq: Sequence, logits: mx.array) -> Sampled:
        chosen = super().sample(seq, logits)
        if chosen.logprob is None:
            return chosen
        value: float = logits[chosen.id].item()  # type: ignore[assignment]
        return replace(chosen, logprob=value)

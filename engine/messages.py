"""The plain values that HTTP threads and the engine thread exchange.

Knows the shape of a request, of the events that answer it, and what the HTTP layer may ask of a worker.
Does not know HTTP, arrays or MLX: whatever crosses between threads is numbers, strings, tuples and dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class SamplingParams:
    """How one request samples.

    logprobs: None for none, k for the chosen token's and the top k; prompt_logprobs the same for the prompt.
    Choice i samples with `seed` + i. Before min_tokens neither an end of text nor a stop string ends it.
    max_tokens 0 computes and stores the prompt, and samples nothing. top_k below 1, top_p 1, min_p 0: off.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    prompt_logprobs: int | None = None


@dataclass(frozen=True)
class Adapter:
    """Small weights on the model, drawn from name and `seed`; `version` counts reloads under the name."""

    name: str
    seed: int = 0
    version: int = 0


@dataclass(frozen=True)
class Request:
    """One prompt for the engine; `salt` keeps its cache apart, `trace` asks for the cache's own account."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    salt: str = ""
    trace: bool = False
    adapter: Adapter | None = None

    @property
    def longest(self) -> int:
        """Rows that a choice writes at most: the prompt's, and all but the last sampled token's."""
        return len(self.prompt) + max(self.params.max_tokens - 1, 0)


@dataclass(frozen=True)
class Started:
    """The request was admitted and `cached_tokens` of its prompt were adopted."""

    cached_tokens: int
    trace: dict[str, Any] | None = None


@dataclass(frozen=True)
class Token:
    """One generated token; `text` is empty while a character or a possible stop string is held back."""

    choice: int
    id: int
    text: str
    logprob: float | None = None
    top: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Prompted:
    """Every prompt token with its logprobs, the first without; comes before the first generated token."""

    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Finished:
    """One choice ended, with reason "stop" or "length"; `text` is what was still held back."""

    choice: int
    reason: str
    text: str = ""
    trace: dict[str, Any] | None = None


@dataclass(frozen=True)
class Done:
    """Last event of a request that succeeded."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    trace: dict[str, Any] | None = None


@dataclass(frozen=True)
class Failed:
    """Last event of a request that did not; `status` is the HTTP status to answer with."""

    status: int
    message: str
    type: str = "server_error"
    param: str | None = None


Progress = Started | Prompted | Token | Finished | Done
Event = Progress | Failed
Sink = Callable[[Event], None]


class RequestError(ValueError):
    """A request that can never be served as asked; `param` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class TextCodec(Protocol):
    """The part of a tokenizer that the HTTP layer uses."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def token_text(self, id: int) -> str: ...

    def render_chat(
        self, messages: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> list[int]: ...


class WorkerLike(Protocol):
    """What the HTTP layer asks of the engine thread's owner. No call but the future's result waits."""

    @property
    def alive(self) -> bool: ...

    @property
    def model_name(self) -> str: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def tokenizer(self) -> TextCodec: ...

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The adapters served now, by name."""

    def submit(self, request: Request, sink: Sink) -> None:
        """Queue a request; its events go to `sink` on the engine thread. Raises RequestError."""

    def cancel(self, request_id: str) -> None:
        """End a request at the next step, whatever its state; unknown ids are ignored."""

    def stats(self) -> dict[str, Any]:
        """The last consistent snapshot, plain values."""

    def call(self, name: str, **kwargs: Any) -> Future[Any]:
        """Run "reset", "mark", "overwrite"(block), "adapter"(adapter, seed) or "integrity" between steps; in
        test mode also "hold"(phase, after) and "fail"(method, after_steps)."""

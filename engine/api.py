"""The OpenAI-shaped wire format: request bodies read and checked, reply bodies built.

Knows field names, their bounds and the shape of every body, error bodies included. Does not know HTTP, the
worker, or what a cache is: it turns bytes into models and events into JSON values.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import from_json

from engine.messages import Finished, SamplingParams, TextCodec, Token

MAX_PROMPTS = 128
MAX_SEED = 2**63 - 1
CHAT_MAX_TOKENS = 256

Ids = tuple[int, ...]
Json = dict[str, Any]


class ApiError(Exception):
    """A request that is answered with an error body; `param` names the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        type: str = "invalid_request_error",
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.type, self.code = status, message, param, type, code

    def body(self) -> Json:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}


# ---- requests


def _read_prompts(value: object) -> tuple[str | Ids, ...]:
    """Normalise the four legal forms of a prompt to a tuple of texts and id tuples."""
    items = value if isinstance(value, list) and value and not _is_id(value[0]) else [value]
    if len(items) > MAX_PROMPTS:
        raise ValueError(f"holds {len(items)} prompts, at most {MAX_PROMPTS} are taken")
    return tuple(_read_prompt(item) for item in items)


def _read_prompt(value: object) -> str | Ids:
    if isinstance(value, str | list) and not value:
        raise ValueError("must not be empty")
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(map(_is_id, value)):
        return tuple(value)
    raise ValueError("must be text, a list of token ids, or a list of one of those")


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _read_content(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_read_part, value))
    raise ValueError("must be text or a list of text parts")


def _read_part(value: object) -> str:
    if isinstance(value, dict) and value.get("type") == "text" and isinstance(value.get("text"), str):
        return str(value["text"])
    raise ValueError('holds a part that is not {"type": "text", "text": ...}; only text is served')


def _read_stop(value: object) -> object:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _read_bias(value: object) -> object:
    """JSON object keys are strings; token ids are numbers."""
    if not isinstance(value, dict):
        return value
    return {int(key) if _is_digits(key) else key: bias for key, bias in value.items()}


def _is_digits(key: object) -> bool:
    return isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 19


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class StreamOptions(_Body):
    include_usage: bool = False


Finite = Annotated[float, Field(allow_inf_nan=False)]


class GenerationBody(_Body):
    """The fields that both generation routes share. Unknown fields are ignored."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    temperature: Annotated[Finite, Field(ge=0, le=2)] = 0.0
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_read_stop), Field(max_length=4)
    ] = ()
    ignore_eos: bool = False
    cache_salt: Annotated[str, Field(max_length=1024)] = ""
    return_token_ids: bool = False
    n: Annotated[int, Field(ge=1, le=8)] = 1
    logit_bias: Annotated[
        dict[Annotated[int, Field(ge=0)], Annotated[Finite, Field(ge=-100, le=100)]],
        BeforeValidator(_read_bias),
    ] = {}
    user: str | None = None
    trace: bool = False

    def _params(self, max_tokens: int, logprobs: int | None) -> SamplingParams:
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            seed=self.seed,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            logit_bias=self.logit_bias,
            n=self.n,
        )


Count = Annotated[int, Field(ge=1, le=2**20)]


class CompletionBody(GenerationBody):
    """POST /v1/completions. `prompt` becomes a tuple of texts and id tuples."""

    prompt: Annotated[tuple[str | Ids, ...], PlainValidator(_read_prompts)]
    max_tokens: Count = 16
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: Literal[False] = False

    def params(self) -> SamplingParams:
        return self._params(self.max_tokens, self.logprobs)


class Message(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, PlainValidator(_read_content)]


Messages = Annotated[list[Message], Field(min_length=1)]


class ChatBody(GenerationBody):
    """POST /v1/chat/completions. `max_completion_tokens` wins over `max_tokens`."""

    messages: Messages
    max_tokens: Count = CHAT_MAX_TOKENS
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    def params(self) -> SamplingParams:
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs: needs logprobs to be true", param="top_logprobs")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self._params(self.max_completion_tokens or self.max_tokens, logprobs)


class TokenizeBody(_Body):
    prompt: str | None = None
    messages: Messages | None = None
    add_generation_prompt: bool = True


class DetokenizeBody(_Body):
    tokens: list[Annotated[int, Field(ge=0)]]


class OverwriteBody(_Body):
    block: Annotated[int, Field(ge=0)]


class HoldBody(_Body):
    """POST /v1/test/hold: requests stand in a phase after so many tokens of it; no phase lets all go."""

    phase: Literal["queued", "prefill", "decode"] | None = None
    after: Annotated[int, Field(ge=0)] = 0


class FailBody(_Body):
    """POST /v1/test/fail: one forward of this kind raises, after so many that succeed."""

    method: Literal["prefill", "decode"]
    after_steps: Annotated[int, Field(ge=0)] = 0


B = TypeVar("B", bound=_Body)


def parse(model: type[B], raw: bytes) -> B:
    """Read a JSON body. Null counts as absent. Raises ApiError 400 that names the first wrong field."""
    try:
        value = from_json(raw)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    try:
        return model.model_validate({key: item for key, item in value.items() if item is not None})
    except ValidationError as error:
        raise _field_error(error) from None


def _field_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"] if part != "[key]")
    said = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    got = "" if first["type"] == "missing" else f" (got {_brief(first['input'])})"
    return ApiError(400, f"{path}: {said}{got}", param=path)


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---- replies


def dump(value: Json) -> bytes:
    """JSON bytes. Floats keep every bit; ASCII only, so that no reader splits a line inside a string."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def finite(value: float | None) -> float | None:
    """The number as it is, or None where JSON has no way to say it."""
    return value if value is not None and math.isfinite(value) else None


@dataclass
class Choice:
    """What one choice has produced so far."""

    index: int
    prompt_ids: Ids
    tokens: list[Token] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    text: str = ""
    reason: str | None = None

    def add(self, event: Token | Finished) -> None:
        if isinstance(event, Token):
            self.tokens.append(event)
            self.offsets.append(len(self.text))
        else:
            self.reason = event.reason
        self.text += event.text


@dataclass
class Usage:
    """Token counts of one HTTP request, summed over its prompts; cached is always a number (count/1)."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def add(self, prompt: int, completion: int, cached: int) -> None:
        self.prompt += prompt
        self.completion += completion
        self.cached += cached

    def body(self) -> Json:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(frozen=True)
class Reply(ABC):
    """Builds the bodies of one reply: `whole` when not streamed, `piece` and `tail` when streamed."""

    id: str
    model: str
    codec: TextCodec
    token_ids: bool
    logprobs: bool
    created: int = field(default_factory=lambda: int(time.time()))
    kind: ClassVar[str]
    piece_kind: ClassVar[str]

    def whole(self, choices: Sequence[Choice], usage: Usage) -> Json:
        bodies = [self._choice(choice) for choice in choices]
        return self._envelope(self.kind, bodies) | {"usage": usage.body()}

    def piece(self, choice: Choice, event: Token | Finished) -> Json:
        """One streamed chunk for an event that `choice` has already taken in."""
        is_token = isinstance(event, Token)
        tokens, offsets = (choice.tokens[-1:], choice.offsets[-1:]) if is_token else ([], [])
        first = len(choice.tokens) == len(tokens)
        body = {"index": choice.index, **self._delta(event.text, first)}
        body |= {"logprobs": self._logprobs(tokens, offsets), "finish_reason": choice.reason}
        body |= self._ids(choice, tokens, first)
        return self._envelope(self.piece_kind, [body])

    def tail(self, usage: Usage) -> Json:
        """The last chunk of a stream that was asked for usage."""
        return self._envelope(self.piece_kind, []) | {"usage": usage.body()}

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return head | {"choices": choices}

    def _choice(self, choice: Choice) -> Json:
        body = {"index": choice.index, **self._content(choice.text)}
        body |= {"logprobs": self._logprobs(choice.tokens, choice.offsets), "finish_reason": choice.reason}
        return body | self._ids(choice, choice.tokens, first=True)

    def _ids(self, choice: Choice, tokens: Sequence[Token], first: bool) -> Json:
        if not self.token_ids:
            return {}
        head = {"prompt_token_ids": list(choice.prompt_ids)} if first else {}
        return head | {"token_ids": [token.id for token in tokens]}

    def _logprobs(self, tokens: Sequence[Token], offsets: Sequence[int]) -> Json | None:
        return self._logprob_body(tokens, offsets) if self.logprobs and tokens else None

    @abstractmethod
    def _content(self, text: str) -> Json: ...

    @abstractmethod
    def _delta(self, text: str, first: bool) -> Json: ...

    @abstractmethod
    def _logprob_body(self, tokens: Sequence[Token], offsets: Sequence[int]) -> Json: ...


class CompletionReply(Reply):
    """Bodies of /v1/completions."""

    kind = "text_completion"
    piece_kind = "text_completion"

    def _content(self, text: str) -> Json:
        return {"text": text}

    def _delta(self, text: str, first: bool) -> Json:
        return {"text": text}

    def _logprob_body(self, tokens: Sequence[Token], offsets: Sequence[int]) -> Json:
        body: Json = {
            "tokens": [self.codec.token_text(token.id) for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": list(offsets),
        }
        return body | ({"token_ids": [token.id for token in tokens]} if self.token_ids else {})

    def _top(self, token: Token) -> dict[str, float | None]:
        """The top k by text, and the chosen token where it is not among them."""
        top = {self.codec.token_text(id): finite(value) for id, value in token.top}
        return top | {self.codec.token_text(token.id): finite(token.logprob)}


class ChatReply(Reply):
    """Bodies of /v1/chat/completions."""

    kind = "chat.completion"
    piece_kind = "chat.completion.chunk"

    def _content(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text}}

    def _delta(self, text: str, first: bool) -> Json:
        return {"delta": ({"role": "assistant"} if first else {}) | {"content": text}}

    def _logprob_body(self, tokens: Sequence[Token], offsets: Sequence[int]) -> Json:
        return {"content": [self._entry(token) for token in tokens]}

    def _entry(self, token: Token) -> Json:
        top = [self._pair(id, value) for id, value in token.top]
        return self._pair(token.id, token.logprob) | {"top_logprobs": top}

    def _pair(self, id: int, logprob: float | None) -> Json:
        text = self.codec.token_text(id)
        pair = {"token": text, "logprob": finite(logprob), "bytes": list(text.encode())}
        return pair | ({"token_id": id} if self.token_ids else {})

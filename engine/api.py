"""The OpenAI-shaped request bodies: read, checked, and every wrong field named.

Knows field names, what each asks of the engine, and the shape of an error. Does not know the forms of one
value (engine.fields), HTTP, the worker, replies (engine.replies), or what a cache is: it turns bytes into
models.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from engine.fields import Biases, Content, Count, Finite, Json, Penalty, Prompts, Stop, Top
from engine.messages import SamplingParams

MAX_SEED = 2**63 - 1
CHAT_MAX_TOKENS = 256


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


class _Body(BaseModel):
    """Fields of a body. Others are taken and mean nothing; `ignored` names them."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    def ignored(self, path: str = "") -> Iterator[str]:
        yield from (path + name for name in self.model_extra or ())
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, _Body):
                yield from value.ignored(f"{path}{name}.")
            for at, item in enumerate(value if isinstance(value, list) else ()):
                if isinstance(item, _Body):
                    yield from item.ignored(f"{path}{name}.{at}.")


class StreamOptions(_Body):
    include_usage: Annotated[bool, Field(description="usage null in every chunk, one more chunk with it")] = (
        False
    )
    continuous_usage_stats: Annotated[
        bool, Field(description="with include_usage: every chunk has the usage so far instead of null")
    ] = False


@dataclass(frozen=True)
class Wants:
    """What a client wants to see beside the text; logprobs as in `SamplingParams`."""

    token_ids: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    usage: bool = False
    running_usage: bool = False


class GenerationBody(_Body):
    """The fields that both generation routes share. Unknown fields are ignored; a trace names them."""

    model: Annotated[str | None, Field(description="the served model, or MODEL:ADAPTER")] = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] = 0.0
    top_k: Annotated[
        int, Field(ge=-1, le=2**31 - 1, description="draw among the k likeliest tokens; -1 and 0 are off")
    ] = 0
    top_p: Annotated[
        Finite, Field(gt=0, le=1, description="of those, among the likeliest that have this mass; 1 is off")
    ] = 1.0
    min_p: Annotated[
        Finite, Field(ge=0, le=1, description="of those, no token less likely than this times the best")
    ] = 0.0
    seed: Annotated[
        int | None, Field(ge=0, le=MAX_SEED, description="choice i of a prompt samples with seed + i")
    ] = None
    stop: Stop = ()
    ignore_eos: bool = False
    min_tokens: Annotated[
        int, Field(ge=0, le=2**20, description="no end of text and no stop string before")
    ] = 0
    cache_salt: Annotated[str, Field(max_length=1024)] = ""
    return_token_ids: bool = False
    n: Annotated[int, Field(ge=1, le=1024, description="choices; at most what the engine batches")] = 1
    logit_bias: Biases = {}
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[
        Finite, Field(ge=0.01, le=100, description="over prompt and generated tokens; 1 is none")
    ] = 1.0
    prompt_logprobs: Annotated[
        Top | None, Field(description="top k of every prompt token; such a request adopts nothing")
    ] = None
    user: str | None = None
    request_id: Annotated[
        str | None,
        Field(min_length=1, max_length=256, description="the client's own name, by which /v1/abort ends it"),
    ] = None
    trace: bool = False

    @property
    def ignored_fields(self) -> list[str]:
        """Fields of the body that mean nothing here, with the path to each."""
        return sorted(self.ignored())

    def wants(self, logprobs: int | None) -> Wants:
        """What the reply shows; `logprobs` as in `SamplingParams`."""
        options = self.stream_options or StreamOptions()
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options: needs stream to be true", param="stream_options")
        return Wants(
            token_ids=self.return_token_ids,
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs,
            usage=options.include_usage,
            running_usage=options.continuous_usage_stats,
        )

    def _params(self, max_tokens: int, logprobs: int | None) -> SamplingParams:
        if self.min_tokens > max_tokens:
            raise ApiError(400, f"min_tokens: is above max_tokens ({max_tokens})", param="min_tokens")
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            logit_bias=self.logit_bias,
            n=self.n,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            min_tokens=self.min_tokens,
            prompt_logprobs=self.prompt_logprobs,
        )


class CompletionBody(GenerationBody):
    """POST /v1/completions. `prompt` becomes a tuple of texts and id tuples."""

    prompt: Prompts
    max_tokens: Count = 16
    logprobs: Top | None = None
    echo: Annotated[
        bool, Field(description="the prompt comes first, with its logprobs where they are asked for")
    ] = False
    best_of: Annotated[int | None, Field(ge=1, description="1, or the same as n: nothing is ranked")] = None

    def params(self) -> SamplingParams:
        if self.best_of not in (None, 1, self.n):
            message = f"best_of: {self.best_of} is neither 1 nor n ({self.n}); choices are not ranked here"
            raise ApiError(400, message, param="best_of")
        params = self._params(self.max_tokens, self.logprobs)
        if not self.echo or self.logprobs is None:
            return params
        return replace(params, prompt_logprobs=max(self.logprobs, self.prompt_logprobs or 0))

    def wants(self, logprobs: int | None) -> Wants:
        return replace(super().wants(logprobs), echo=self.echo)


class Message(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content


Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]


class ChatBody(GenerationBody):
    """POST /v1/chat/completions. `max_completion_tokens` wins over `max_tokens`."""

    messages: Messages
    max_tokens: Count = CHAT_MAX_TOKENS
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Top | None = None

    def params(self) -> SamplingParams:
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs: needs logprobs to be true", param="top_logprobs")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        wins = self.max_completion_tokens
        return self._params(self.max_tokens if wins is None else wins, logprobs)


class TokenizeBody(_Body):
    """POST /tokenize: either `prompt` or `messages`."""

    prompt: str | None = None
    messages: Messages | None = None
    add_generation_prompt: bool = True


class DetokenizeBody(_Body):
    """POST /detokenize."""

    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]


class AbortBody(_Body):
    """POST /v1/abort: the id of a reply, or the `request_id` that its client gave."""

    request_id: Annotated[str, Field(min_length=1, max_length=256)]


class OverwriteBody(_Body):
    """POST /v1/test/overwrite."""

    block: Annotated[int, Field(ge=0)]


class AdapterBody(_Body):
    """POST /v1/test/adapter: give an adapter's name the weights of another seed."""

    name: str
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]


class HoldBody(_Body):
    """POST /v1/test/hold: requests stand in a phase after so many tokens of it; no phase lets all go."""

    phase: Literal["queued", "prefill", "decode"] | None = None
    after: Annotated[int, Field(ge=0)] = 0


class FailBody(_Body):
    """POST /v1/test/fail: one forward of this kind raises, after so many that succeed; no kind: none does."""

    method: Literal["prefill", "decode"] | None = None
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
    text = reprlib.repr(value)  # a whole value may be megabytes
    return text if len(text) <= 60 else text[:57] + "..."

"""Reply bodies in OpenAI's shapes, whole and in pieces.

Knows what a choice has said and how it looks on the wire. Does not know requests' bounds (engine.api), HTTP,
the worker, or what a cache is.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar

from engine.api import Wants
from engine.fields import Ids, Json
from engine.messages import Finished, Prompted, TextCodec, Token


def finite(value: float | None) -> float | None:
    """The number as it is, or None where JSON has no way to say it."""
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Part:
    """What a choice said since its part before; `ids` are the generated ones among `tokens`."""

    text: str
    tokens: Sequence[Token]
    offsets: Sequence[int]
    ids: Ids
    first: bool


Said = Callable[[Part], Json]


@dataclass
class Choice:
    """What one choice has produced so far. `echo`: the prompt's text by tokens, where it is to come first."""

    index: int
    prompt_ids: Ids
    echo: Sequence[str] = ()
    tokens: list[Token] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    prompt: Sequence[Token] = ()
    reason: str | None = None

    def __post_init__(self) -> None:
        self.text = "".join(self.echo)
        self._echoed = self._tokens_sent = self._text_sent = 0
        self._begun = False

    def add(self, event: Prompted | Token | Finished) -> None:
        if isinstance(event, Prompted):
            self._add_prompt(event.tokens)
            return
        if isinstance(event, Token):
            self.tokens.append(event)
            self.offsets.append(len(self.text))
        else:
            self.reason = event.reason
        self.text += event.text

    def _add_prompt(self, tokens: Sequence[Token]) -> None:
        self.prompt = tokens
        if self.echo:
            self.tokens += tokens
            self.offsets += [0, *accumulate(map(len, self.echo[:-1]))]
            self._echoed = len(tokens)

    def part(self) -> Part:
        """Everything since the last call; the whole reply is one part."""
        at, begun = self._tokens_sent, self._begun
        tokens = self.tokens[at:]
        ids = tuple(token.id for token in tokens[max(self._echoed - at, 0) :])
        part = Part(self.text[self._text_sent :], tokens, self.offsets[at:], ids, not begun)
        self._tokens_sent, self._text_sent, self._begun = len(self.tokens), len(self.text), True
        return part


@dataclass
class Usage:
    """Token counts of one prompt, or of a whole HTTP request; cached is always a number (count/1)."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    @classmethod
    def total(cls, usages: Iterable[Usage]) -> Usage:
        whole = cls()
        for usage in usages:
            whole.prompt += usage.prompt
            whole.completion += usage.completion
            whole.cached += usage.cached
        return whole

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
    wants: Wants = field(default_factory=Wants)
    fingerprint: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    kind: ClassVar[str]
    piece_kind: ClassVar[str]

    def whole(self, choices: Sequence[Choice], usage: Usage) -> Json:
        bodies = [self._choice(choice, self._content) for choice in choices]
        return self._envelope(self.kind, bodies) | {"usage": usage.body()}

    def piece(self, choice: Choice, usage: Usage) -> Json:
        """One streamed chunk: what `choice` said since its last."""
        body = self._envelope(self.piece_kind, [self._choice(choice, self._delta)])
        if not self.wants.usage:
            return body
        return body | {"usage": usage.body() if self.wants.running_usage else None}

    def tail(self, usage: Usage) -> Json:
        """The last chunk of a stream that was asked for usage."""
        return self._envelope(self.piece_kind, []) | {"usage": usage.body()}

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return head | {"system_fingerprint": self.fingerprint, "choices": choices}

    def _choice(self, choice: Choice, said: Said) -> Json:
        part = choice.part()
        body = {"index": choice.index, **said(part)}
        body |= {"logprobs": self._logprobs(part), "finish_reason": choice.reason}
        return body | self._ids(choice, part) | self._prompt(choice, part)

    def _ids(self, choice: Choice, part: Part) -> Json:
        if not self.wants.token_ids:
            return {}
        head = {"prompt_token_ids": list(choice.prompt_ids)} if part.first else {}
        return head | {"token_ids": list(part.ids)}

    def _prompt(self, choice: Choice, part: Part) -> Json:
        """The prompt's logprobs, in the first part; null for the first token, which nothing predicts."""
        if self.wants.prompt_logprobs is None or not part.first:
            return {}
        entries = [self._scored(token) if token.logprob is not None else None for token in choice.prompt]
        return {"prompt_logprobs": entries}

    def _scored(self, token: Token) -> Json:
        """Logprobs by id: the top k and the prompt's own token."""
        pairs = dict([*token.top[: self.wants.prompt_logprobs], (token.id, token.logprob or 0.0)])
        return {
            str(id): {"logprob": finite(value), "decoded_token": self.codec.token_text(id)}
            for id, value in pairs.items()
        }

    def _logprobs(self, part: Part) -> Json | None:
        return self._logprob_body(part) if self.wants.logprobs is not None and part.tokens else None

    def _ranked(self, token: Token) -> list[tuple[int, float]]:
        return token.top[: self.wants.logprobs]

    @abstractmethod
    def _content(self, part: Part) -> Json: ...

    @abstractmethod
    def _delta(self, part: Part) -> Json: ...

    @abstractmethod
    def _logprob_body(self, part: Part) -> Json: ...


class CompletionReply(Reply):
    """Bodies of /v1/completions."""

    kind = "text_completion"
    piece_kind = "text_completion"

    def _content(self, part: Part) -> Json:
        return {"text": part.text}

    def _delta(self, part: Part) -> Json:
        return {"text": part.text}

    def _logprob_body(self, part: Part) -> Json:
        tokens = part.tokens
        body: Json = {
            "tokens": [self.codec.token_text(token.id) for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": list(part.offsets),
        }
        return body | ({"token_ids": [token.id for token in tokens]} if self.wants.token_ids else {})

    def _top(self, token: Token) -> dict[str, float | None] | None:
        """The top k by text, and the chosen token where it is not among them. None for the very first."""
        if token.logprob is None and not token.top:
            return None
        top = {self.codec.token_text(id): finite(value) for id, value in self._ranked(token)}
        return top | {self.codec.token_text(token.id): finite(token.logprob)}


class ChatReply(Reply):
    """Bodies of /v1/chat/completions."""

    kind = "chat.completion"
    piece_kind = "chat.completion.chunk"

    def _content(self, part: Part) -> Json:
        return {"message": {"role": "assistant", "content": part.text}}

    def _delta(self, part: Part) -> Json:
        return {"delta": ({"role": "assistant"} if part.first else {}) | {"content": part.text}}

    def _logprob_body(self, part: Part) -> Json:
        return {"content": [self._entry(token) for token in part.tokens]}

    def _entry(self, token: Token) -> Json:
        top = [self._pair(id, value) for id, value in self._ranked(token)]
        return self._pair(token.id, token.logprob) | {"top_logprobs": top}

    def _pair(self, id: int, logprob: float | None) -> Json:
        text = self.codec.token_text(id)
        pair = {"token": text, "logprob": finite(logprob), "bytes": list(text.encode())}
        return pair | ({"token_id": id} if self.wants.token_ids else {})

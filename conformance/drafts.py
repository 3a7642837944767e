"""Requests that wait for replies: what of their prompt and sampling is known only while a plan is driven.

Knows how a request is completed from recorded outcomes. Does not know steps, or how a reply came about. A
request without anything to wait for is completed at once, by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.history import Outcome, PlannedRequest
from conformance.prompts import Body, Piece, Prompt, ReplyOf, Unobservable, joined
from conformance.rungs import digest

_BANNED = -100.0
"""The bias that keeps a token from being chosen, in OpenAI's bounds."""

Replies = Callable[[str], Outcome | None]
"""The outcome of the request with that id, once it is recorded."""


class MissingReply(Exception):
    """A reply that a later request needs did not come; the message says which and why."""


@dataclass(frozen=True)
class StopOf:
    """A stop string: token `token` of what the request with this id generated, as text."""

    id: str
    token: int


@dataclass(frozen=True)
class Draft:
    """What a request says: pieces of its prompt or of its messages, stop strings, and banned first tokens."""

    body: Body = ()
    messages: tuple[tuple[str, Body], ...] = ()
    stops: tuple[str | StopOf, ...] = ()
    bans: tuple[str, ...] = ()
    is_ids: bool = True

    @property
    def waits(self) -> bool:
        """Whether anything of it is a reply."""
        late = any(isinstance(piece, ReplyOf) for piece in self.pieces)
        return late or bool(self.bans) or any(isinstance(stop, StopOf) for stop in self.stops)

    @property
    def pieces(self) -> list[Piece]:
        """All of the prompt or the messages, in order."""
        bodies = [self.body, *(body for _, body in self.messages)]
        return [piece for body in bodies for group in body for piece in group]


def completed(request: PlannedRequest, draft: Draft, replies: Replies) -> PlannedRequest:
    """The request as it is sent. Raises MissingReply, or Unobservable where a reply lacks what is needed."""
    needs = _Needs(request.id, replies)
    groups = [needs.known(group, draft.is_ids) for group in draft.body]
    prompt = joined([piece for group in groups for piece in group])
    messages = [
        {"role": role, "content": str(joined([p for group in body for p in needs.known(group, False)]) or "")}
        for role, body in draft.messages
    ]
    sampling = {**request.sampling, **needs.sampling(draft)}
    changes: dict[str, Any] = {"sampling": sampling, "messages": messages or None}
    if not messages:
        changes |= {
            "prompt_ids": None if isinstance(prompt, str) else list(prompt),
            "prompt_text": prompt if isinstance(prompt, str) else None,
            "parts": [len(joined(group)) for group in groups],
        }
    made = request.model_copy(update=changes)
    return made.model_copy(update={"key": key_of(made)})


def key_of(request: PlannedRequest) -> str:
    """Digest of what decides the reply; of the sampling and the rest only where they are said."""
    prompt = request.prompt_text if request.prompt_ids is None else request.prompt_ids
    more = {name: value for name in ("sampling", "adapter", "messages") if (value := getattr(request, name))}
    said = [prompt, request.max_tokens, request.stream, request.logprobs]
    return digest([*said, more] if more else said)


@dataclass(frozen=True)
class _Needs:
    """What one request takes from replies."""

    id: str
    replies: Replies

    def known(self, group: Sequence[Piece], is_ids: bool) -> list[Prompt | None]:
        """Pieces with replies put in; a reply follows its prompt without a space, hence None before it."""
        known: list[Prompt | None] = []
        for piece in group:
            known += [None, self._generated(piece, is_ids)] if isinstance(piece, ReplyOf) else [piece]
        return known

    def sampling(self, draft: Draft) -> Mapping[str, Any]:
        said: dict[str, Any] = {}
        if draft.stops:
            said["stop"] = [stop if isinstance(stop, str) else self._token(stop) for stop in draft.stops]
        if draft.bans:
            said["logit_bias"] = {str(self._first(id)): _BANNED for id in draft.bans}
        return said

    def _reply(self, id: str) -> Outcome:
        outcome = self.replies(id)
        if outcome is None:
            raise MissingReply(f"{self.id} needs the reply of {id}, which has not ended")
        if not outcome.ok:
            reason = outcome.error or f"HTTP status {outcome.status}"
            raise MissingReply(f"{self.id} needs the reply of {id}, which failed: {reason}")
        return outcome

    def _generated(self, piece: ReplyOf, is_ids: bool) -> Prompt:
        outcome = self._reply(piece.id)
        if piece.rendered:
            return self._rendered(outcome, is_ids)
        if not is_ids:
            return outcome.text
        if outcome.token_ids is None:
            raise MissingReply(f"{self.id}: the reply of {piece.id} did not come back as ids")
        return outcome.token_ids

    def _rendered(self, outcome: Outcome, is_ids: bool) -> Prompt:
        if not is_ids or outcome.rendered_ids is None:
            raise Unobservable(
                f"{self.id} repeats {outcome.id} as ids, which the target does not tell or take"
            )
        return outcome.rendered_ids

    def _token(self, stop: StopOf) -> str:
        outcome = self._reply(stop.id)
        texts = outcome.logprob_tokens
        if not texts:
            raise Unobservable(f"the target does not tell the text of each token, and {self.id} stops at one")
        if stop.token >= len(texts):
            raise MissingReply(f"{self.id} stops at token {stop.token} of {stop.id}, which has {len(texts)}")
        return texts[stop.token]

    def _first(self, id: str) -> int:
        outcome = self._reply(id)
        if not outcome.token_ids:
            raise Unobservable(f"the target returns no token ids, and {self.id} bans the first one of {id}")
        return outcome.token_ids[0]

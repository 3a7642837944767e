"""A reply as it came over the wire, made into an outcome.

Knows the shapes of OpenAI completions, streamed or not, and where a dialect says that ids, cached counts
and traces stand. Does not know whether what a reply says is right. Bad input never raises: it becomes the
outcome's `error`, one line that says what was wrong with the reply.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from conformance.dialect import Answer, as_json, first, pick
from conformance.history import Choice, Outcome, PlannedRequest
from conformance.wire import RawReply

_DONE = b"[DONE]"
_TEXTS = ["text", "delta.content", "message.content"]
"""Where a choice says its text: a completion, a piece of a chat reply, a whole one."""
_SHOWN = 120
_MOST_CACHED = 2**53
"""More than any prompt has, and the last whole number that all readers of a history agree on."""


class BadReply(Exception):
    """A reply that is not what was asked for; the message is the outcome's error."""


class _Told(BadReply):
    """The server itself says what went wrong: it was there to say it."""


@dataclass
class _Said:
    """What the chunks of one choice add up to."""

    text: str = ""
    ids: list[int] | None = None
    logprobs: list[float] | None = None
    tops: list[list[float]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    tokens_at: list[float] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, choice: Any, ids: Any, at: float | None) -> None:
        text = _text(choice)
        self.finish_reason = pick(choice, "finish_reason") or self.finish_reason
        self.text += text
        if ids is not None:
            self.ids = [*(self.ids or []), *ids]
        self._logprobs(pick(choice, "logprobs"))
        if at is not None and (text or ids):
            self.tokens_at += [at] * (len(ids) if ids else 1)

    def _logprobs(self, given: Any) -> None:
        if given is None:
            return
        entries = given["content"] if given.get("content") is not None else _entries(given)
        values = [entry["logprob"] for entry in entries]
        self.logprobs = [*(self.logprobs or []), *values]
        self.tokens += [entry["token"] for entry in entries if "token" in entry]
        self.tops += [_top(entry.get("top_logprobs")) for entry in entries]

    def gaps(self) -> list[float] | None:
        """Between the two likeliest tokens, position by position; None unless all of them are known."""
        if not self.tops or any(len(top) < 2 for top in self.tops):
            return None
        return [top[0] - top[1] for top in self.tops]

    def choice(self, index: int) -> Choice:
        return Choice(
            index=index,
            token_ids=self.ids,
            text=_whole_characters(self.text),
            logprobs=self.logprobs,
            finish_reason=self.finish_reason,
        )


@dataclass
class _Parts:
    """What the chunks of one reply add up to: its choices by index, and what is said once."""

    choices: dict[int, _Said] = field(default_factory=lambda: {0: _Said()})
    usage: dict[str, Any] | None = None
    usages: int = 0
    cached: int | None = None
    trace: dict[str, Any] | None = None
    rendered: list[int] | None = None
    prompt_logprobs: list[Any] | None = None

    def add(self, data: Any, answer: Answer, at: float | None) -> None:
        """Takes one chunk (or a whole reply) in; BadReply when it is an error or none of ours."""
        if not isinstance(data, dict):
            raise BadReply(f"a reply that is no JSON object: {_shorten(json.dumps(data))}")
        if (error := data.get("error")) is not None:
            raise _Told(f"the server reports: {_message(error)}")
        for place, choice in enumerate(_choices(data)):
            index = choice.get("index", place) if isinstance(choice, dict) else place
            self.choices.setdefault(index, _Said()).add(choice, _ids(data, choice, place, answer), at)
        usage = data.get("usage")
        self.usages += isinstance(usage, dict)
        self.usage = usage if isinstance(usage, dict) else self.usage
        cached = first(data, answer.cached)
        if cached is None and self.usage is not None and answer.absent_is_zero:
            cached = self.cached or 0
        if isinstance(cached, int) and abs(cached) > _MOST_CACHED:
            raise BadReply(f"a reply whose cached tokens are no count: {_shorten(str(cached))}")
        self.cached = cached if isinstance(cached, int) and not isinstance(cached, bool) else self.cached
        self.trace = (answer.trace and pick(data, answer.trace)) or self.trace
        self.rendered = self.rendered or first(data, answer.rendered)
        self.prompt_logprobs = self.prompt_logprobs or pick(data, answer.prompt_logprobs)


_OWN = "choices[0]."


def _choices(data: dict[str, Any]) -> list[Any]:
    choices = data.get("choices", [])
    if not isinstance(choices, list):
        raise BadReply(f"a reply whose choices are no list: {_shorten(json.dumps(choices))}")
    return choices


def _text(choice: Any) -> str:
    return first(choice, _TEXTS) or ""


def _whole_characters(text: str) -> str:
    """Halves of a character joined; what stays half is replaced: JSON can say it, no terminal can show it."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _ids(data: dict[str, Any], choice: Any, place: int, answer: Answer) -> Any:
    """A choice's ids: the dialect says where those of the first one stand."""
    if answer.ids is None:
        return None
    if answer.ids.startswith(_OWN):
        return pick(choice, answer.ids.removeprefix(_OWN))
    return pick(data, answer.ids) if place == 0 else None


def to_outcome(raw: RawReply, plan: PlannedRequest, arm: str, answer: Answer) -> Outcome:
    """What the reply says, with everything that is wrong with it in `error`. Raises nothing."""
    parts, error, told = _Parts(), raw.error, False
    try:
        _collect(raw, parts, answer)
    except Exception as bad:
        told = error is None and isinstance(bad, _Told)
        error = error or _what_is_wrong(bad)
    if raw.left is not None:
        # What a server says to a client that has left, or that had its request ended, is no failure.
        error, told = None, False
    try:
        return _outcome(raw, plan, arm, parts, error, told)
    except Exception as bad:
        return _outcome(raw, plan, arm, _Parts(), error or _what_is_wrong(bad))


def _what_is_wrong(bad: Exception) -> str:
    """Any value may stand anywhere in a reply, so whatever fails on it is the reply's fault."""
    if isinstance(bad, BadReply):
        return str(bad)
    if isinstance(bad, ValidationError):
        return f"a reply with a wrong value for {'.'.join(map(str, bad.errors()[0]['loc']))}"
    return _shorten(f"a reply of an unexpected shape: {type(bad).__name__} {bad}")


def _outcome(
    raw: RawReply, plan: PlannedRequest, arm: str, parts: _Parts, error: str | None, told: bool = False
) -> Outcome:
    usage, said = parts.usage or {}, parts.choices[0]
    several = len(parts.choices) > 1
    return Outcome(
        id=plan.id,
        arm=arm,
        step=plan.step,
        index=plan.index,
        plan=plan,
        sent=raw.sent,
        first=said.tokens_at[0] if said.tokens_at else None,
        ended=raw.ended,
        status=raw.status,
        error=error,
        timed_out=raw.timed_out,
        finish_reason=said.finish_reason,
        token_ids=said.ids,
        text=_whole_characters(said.text),
        logprobs=said.logprobs,
        gaps=said.gaps(),
        logprob_tokens=list(map(_whole_characters, said.tokens)) or None,
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        cached=parts.cached,
        usage=parts.usage,
        trace=parts.trace,
        left=raw.left,
        tokens_at=said.tokens_at,
        choices=[parts.choices[i].choice(i) for i in sorted(parts.choices)] if several else [],
        prompt_logprobs=_of_prompt(parts.prompt_logprobs, plan, parts.rendered),
        retry_after=_seconds(raw.headers.get("retry-after")),
        rendered_ids=parts.rendered if plan.messages else None,
        usages=parts.usages,
        rejected=_rejected(raw),
        told=told,
    )


def _of_prompt(given: Any, plan: PlannedRequest, rendered: list[int] | None) -> list[float | None] | None:
    """The logprob of each prompt token, from {id: {"logprob": value}} that may list others beside it."""
    ids = plan.prompt_ids or rendered
    if not isinstance(given, list) or ids is None or len(ids) != len(given):
        return None
    entries = [(entry or {}).get(str(id)) for entry, id in zip(given, ids, strict=True)]
    return [entry["logprob"] if isinstance(entry, dict) else entry for entry in entries]


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def _rejected(raw: RawReply) -> bool:
    """Refused, and the client is told why."""
    refused = raw.status is not None and (400 <= raw.status < 500 or raw.status == 503)
    body = as_json(raw.body.decode(errors="replace")) if refused else None
    return isinstance(body, dict) and bool(body.get("error") or body.get("message") or body.get("detail"))


def _collect(raw: RawReply, parts: _Parts, answer: Answer) -> None:
    if raw.status is None:
        return
    if raw.status != 200:
        raise _Told(_refusal(raw))
    if raw.streamed:
        _stream(raw, parts, answer)
    elif raw.error is None and raw.left is None:
        kind = raw.headers.get("content-type", "no content type")
        parts.add(_parsed(raw.body, f"the reply ({_shorten(kind)})"), answer, None)


def _refusal(raw: RawReply) -> str:
    """What a status other than 200 says, and what the server asks the client to do now, which it does not."""
    body = raw.body.decode(errors="replace")
    told = _message(as_json(body), body)
    if 300 <= (raw.status or 0) < 400:
        where = _shorten(raw.headers.get("location", "nowhere"))
        return f"status {raw.status}: a redirect to {where}; no prompt goes to another address than was given"
    wait = raw.headers.get("retry-after")
    asked = f" (Retry-After: {_shorten(wait)}; a prompt that was sent is not sent again)" if wait else ""
    return f"status {raw.status}: {told}{asked}"


def _stream(raw: RawReply, parts: _Parts, answer: Answer) -> None:
    done = False
    for number, (at, payload) in enumerate(raw.events, start=1):
        if payload == _DONE:
            done = True
        elif done:
            raise BadReply(f"the stream goes on after [DONE]: {_shorten(payload.decode(errors='replace'))}")
        else:
            parts.add(_parsed(payload, f"event {number} of the stream"), answer, at)
    if not done and raw.left is None:
        raise BadReply(f"the stream ended after {len(raw.events)} events without [DONE]")


def _parsed(payload: bytes, what: str) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise BadReply(f"{what} is no JSON: {_shorten(payload.decode(errors='replace'))}") from None


def is_completion(raw: RawReply) -> bool:
    """Whether a reply, streamed or not, is one of a completions route: choices with a text and a finish."""
    payloads = [payload for _, payload in raw.events] if raw.streamed else [raw.body]
    choices = [pick(as_json(payload.decode(errors="replace")), "choices[0]") for payload in payloads]
    has_text = any(isinstance(first(choice, _TEXTS), str) for choice in choices)
    return has_text and any(pick(choice, "finish_reason") for choice in choices)


def excerpt(raw: RawReply, length: int = 80) -> str:
    """What came back, in a few words: its content type and its first characters."""
    kind = raw.headers.get("content-type", "no content type")
    content = raw.events[0][1] if raw.events else raw.body
    text = " ".join(content.decode(errors="replace").split())
    return f"{kind}, {text[:length]!r}{'…' if len(text) > length else ''}"


def carries_token(payload: bytes, answer: Answer) -> bool:
    """Whether a payload of a stream holds generated content of the first choice: what a client counts."""
    data = as_json(payload.decode(errors="replace"))
    choice = pick(data, "choices[0]")
    if not isinstance(choice, dict) or choice.get("index", 0) != 0:
        return False
    return bool(_text(choice) or _ids(data, choice, 0, answer))


def _entries(given: dict[str, Any]) -> list[dict[str, Any]]:
    """The completions shape, four parallel lists, as one entry a token."""
    tops = given.get("top_logprobs") or [None] * len(given["tokens"])
    rows = zip(given["tokens"], given["token_logprobs"], tops, strict=True)
    return [{"token": token, "logprob": value, "top_logprobs": top} for token, value, top in rows]


def _top(top: Any) -> list[float]:
    """Top logprobs, highest first, from {token: value} or [{"logprob": value}]."""
    if not top:
        return []
    values = top.values() if isinstance(top, dict) else [entry["logprob"] for entry in top]
    return sorted(values, reverse=True)


def _message(error: Any, body: str = "") -> str:
    found = pick(error, "error.message") or pick(error, "message") or pick(error, "error")
    text = found if isinstance(found, str) else None
    if text is None:
        text = error if isinstance(error, str) else body or json.dumps(error)
    return _shorten(text)


def _shorten(text: str) -> str:
    start = text[: _SHOWN * 10]
    line = "an HTML page" if start.lstrip().startswith("<") else " ".join(start.split())
    line = _whole_characters(line)
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"

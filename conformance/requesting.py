"""The requests of one workload: prompts, salts, sampling and names, as far as they are known beforehand.

Knows what a step says of its requests and the target's declared facts. Does not know the order of steps or
what else a step does (`plan.py`), how a part is drawn (`prompts.py`), or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance.asks import ADAPTER_SALT
from conformance.drafts import Draft, StopOf, completed, key_of
from conformance.history import Facts, PlannedRequest
from conformance.marks import Location
from conformance.prompts import (
    Asker,
    Body,
    Piece,
    Prompts,
    ReplyOf,
    Unobservable,
    Vocabulary,
    marker,
    positive,
    seed_of,
)
from conformance.spec import (
    Arm,
    BanFirst,
    Churn,
    Entry,
    MarkerPart,
    Repeat,
    Request,
    Sampling,
    Spec,
    StopToken,
    Turns,
)

_HEAD = 8  # tokens that a salt takes as text; rounded up to whole granules, so that lengths keep their place
_CHURN_EACH = 512
CHURN_POOLS = 6
"""Pools of prompts after which a churn ends, evictions or not."""


@dataclass(frozen=True)
class Made:
    """A planned request, what it waits for, and its prompt without a salt's head."""

    request: PlannedRequest
    draft: Draft
    body: Body


@dataclass
class Requests:
    """Makes the requests of one arm, step after step; `salt` is the workload's own."""

    spec: Spec
    facts: Facts
    vocabulary: Vocabulary
    symbols: Mapping[str, int]
    salt: str
    arm: Arm
    made: dict[str, list[Made]] = field(default_factory=dict)
    """Requests by every name they have, those of the round made last."""
    in_loop: bool = False
    _counts: dict[str, int] = field(default_factory=dict)
    """How many requests each name has had, in all rounds so far."""
    _makers: dict[bool, Prompts] = field(default_factory=dict)

    # What a step asks

    def alike(self, loc: Location, name: str, step: Request, count: int, many: bool) -> list[Made]:
        """`count` requests of one step."""
        return [self._one(loc, step, self._asker(name, place, many), name) for place in range(count)]

    def each(self, loc: Location, group: str, each: Sequence[Entry]) -> list[Made]:
        """Requests of different entries; their indices are those of the burst."""
        wanted = [(i, entry) for i, entry in enumerate(each) for _ in range(entry.requests)]
        names = [entry.name for _, entry in wanted]
        made = [
            self._of_entry((*loc, "each", i), group, place, entry, names.count(entry.name) > 1)
            for place, (i, entry) in enumerate(wanted)
        ]
        for name in filter(None, names):
            self.made[name] = [one for one in made if one.request.step == name]
        return made

    def _of_entry(self, loc: Location, group: str, place: int, entry: Entry, many: bool) -> Made:
        asker = self._asker(group, place, True)
        if entry.name is None:
            return self._one(loc, entry, asker, group)
        own = self._asker(entry.name, place, many)
        return self._one(loc, entry, Asker(own.id, asker.index, place), entry.name, group)

    def turns(self, loc: Location, step: Turns) -> list[Made]:
        """Each turn's prompt is all of the last turn's, its reply, and what the turn adds."""
        if step.chat and not self.facts.has_chat:
            raise Unobservable(_NO_CHAT)
        ask = Request(prompt=step.opening, max_tokens=step.max_tokens, stream=step.stream)
        prompts = self._prompts(self.vocabulary.is_ids and not step.chat)
        made: list[Made] = []
        for turn in range(step.count):
            asker = self._asker(step.turns, turn, True)
            head = self._head(self._salt("shared", asker.id), text=bool(step.chat))
            opening = (*_flat(head), *_flat(prompts.body(step.opening, (*loc, "opening"), asker)))
            adds = _flat(prompts.body(step.each, (*loc, "each"), asker))
            said = _chat_turn if step.chat else _text_turn
            draft = said(made[-1] if made else None, opening, adds, self.vocabulary.is_ids)
            made.append(_complete(self._template(loc, ask, asker, step.turns), draft, draft.body))
        return made

    def repeat(self, loc: Location, step: Repeat) -> list[Made]:
        """The very requests of an earlier step, under names of their own."""
        changes: dict[str, Any] = {"group": None}
        if step.stream is not None and self.arm.stream is None:
            changes["stream"] = step.stream
        if step.max_tokens is not None:
            changes["max_tokens"] = self._tokens(step.max_tokens, (*loc, "max_tokens"))
        return [
            self._again(one, self._asker(step.repeat, place, True), step.repeat, changes)
            for place, one in enumerate(self.made[step.of] * step.times)
        ]

    def _again(self, one: Made, asker: Asker, name: str, changes: Mapping[str, Any]) -> Made:
        named = {"id": asker.id, "step": name, "index": asker.index}
        request = one.request.model_copy(update={**changes, **named})
        if not one.draft.waits:
            request = request.model_copy(update={"key": key_of(request)})
        return Made(request, one.draft, one.body)

    def churn(self, loc: Location, step: Churn) -> list[Made]:
        """Prompts that share nothing, worth as many tokens as are to pass."""
        pool = self.symbols.get("pool")
        each = min(_CHURN_EACH, (pool or 4 * _CHURN_EACH) // 4)
        if step.each is not None:
            each = self._tokens(step.each, (*loc, "each"))
        if step.tokens is not None:
            total = float(self._tokens(step.tokens, (*loc, "tokens")))
        elif pool is None:
            raise Unobservable("the target does not tell its pool, which a churn is to fill")
        else:
            total = (step.pools or CHURN_POOLS) * pool
        ask = Request(prompt=[step.churn], max_tokens=1, logprobs=False, salt=step.salt)
        return [self._churned(loc, step, ask, place, each) for place in range(-int(-total // each))]

    def _churned(self, loc: Location, step: Churn, ask: Request, place: int, each: int) -> Made:
        asker = self._asker(step.churn, place, True)
        template = self._template(loc, ask, asker, step.churn)
        prompts = self._prompts(self.vocabulary.is_ids)
        # A seed of its own: a case that looks at its `unique` parts afterwards must not find them warm.
        body: Body = ((prompts.unique(each, seed_of("churn", step.churn), asker.index),),)
        draft = Draft((*self._head(self._salt(step.salt, asker.id)), *body), is_ids=self.vocabulary.is_ids)
        return _complete(template, draft, body)

    # One request

    def _asker(self, name: str, place: int, many: bool) -> Asker:
        index = self._counts.get(name, 0)
        self._counts[name] = index + 1
        return Asker(f"{name}[{index}]" if many or self.in_loop else name, index, place)

    def _one(self, loc: Location, step: Request, asker: Asker, name: str, group: str | None = None) -> Made:
        template = self._template(loc, step, asker, name, group)
        head = self._head(self._salt(step.salt, asker.id), text=bool(step.messages))
        body = self._prompts(self.vocabulary.is_ids).body(step.prompt or [], (*loc, "prompt"), asker)
        messages = self._messages(loc, step, asker, head)
        stops, bans = self._late(step.sampling)
        whole = () if messages else (*head, *body)
        return _complete(template, Draft(whole, messages, stops, bans, self.vocabulary.is_ids), body)

    def _template(
        self, loc: Location, step: Request, asker: Asker, name: str, group: str | None = None
    ) -> PlannedRequest:
        """All of a request but its prompt and what waits for replies."""
        contents = [part for message in step.messages or () for part in message.content]
        marked = any(isinstance(part, MarkerPart) for part in [*contents, *(step.prompt or [])])
        return PlannedRequest(
            id=asker.id,
            step=name,
            index=asker.index,
            prompt_ids=None,
            prompt_text=None,
            parts=[],
            max_tokens=self._tokens(step.max_tokens, (*loc, "max_tokens")),
            salt=self._salt(step.salt, asker.id) if self.facts.has_salt else "",
            stream=step.stream if self.arm.stream is None or step.leave else self.arm.stream,
            logprobs=step.logprobs,
            key="",
            group=group,
            sampling=self._sampling(step.sampling),
            adapter=self.adapter(step.adapter) if step.adapter is not None else None,
            leave=self._leave(step),
            marker=marker(asker.id) if marked else None,
        )

    def _messages(
        self, loc: Location, step: Request, asker: Asker, head: Body
    ) -> tuple[tuple[str, Body], ...]:
        """Role and content of each message; a salt's head stands in the first one."""
        if step.messages and not self.facts.has_chat:
            raise Unobservable(_NO_CHAT)
        prompts = self._prompts(is_ids=False)
        found: list[tuple[str, Body]] = []
        for i, message in enumerate(step.messages or ()):
            body = prompts.body(message.content, (*loc, "messages", i, "content"), asker)
            found.append((message.role, body if found else (*head, *body)))
        return tuple(found)

    def _salt(self, salt: str, id: str) -> str:
        if salt == "private" or self.arm.salt == "private":
            return f"{self.salt}-{id}"
        if salt == "none" or salt.startswith(ADAPTER_SALT):
            return self._bare_salt(salt)
        return self.salt if salt == "shared" else f"{self.salt}-label-{salt}"

    def _bare_salt(self, salt: str) -> str:
        """No salt, or an adapter's name: nothing of the workload's own, which stands in a head instead."""
        if not self.facts.has_salt:
            raise Unobservable("the target has no salt field, so no salt can be left out or be a name")
        if salt == "none":
            return ""
        self.adapter(salt.removeprefix(ADAPTER_SALT))
        return salt

    def _head(self, salt: str, text: bool = False) -> Body:
        """The salt as text, where there is no field for it; the workload's, where the field tells none."""
        bare = salt == "" or salt.startswith(ADAPTER_SALT)
        if self.facts.has_salt and not bare:
            return ()
        salt = self.salt if bare else salt
        granule = self.facts.granule or 1
        tokens = -(-_HEAD // granule) * granule
        return ((self._prompts(self.vocabulary.is_ids and not text).draw(tokens, seed_of("salt", salt)),),)

    def _sampling(self, said: Sampling | None) -> dict[str, Any]:
        """What is said, without what waits for replies. Unobservable where the target lacks a name of it."""
        given = said.model_dump(exclude_none=True) if said is not None else {}
        lacking = sorted(set(given) - set(self.facts.can))
        if lacking:
            raise Unobservable(f"the target is not known to take {', '.join(lacking)}")
        if said is not None and any(isinstance(stop, StopToken) for stop in said.stop or ()):
            del given["stop"]
        if said is not None and isinstance(said.logit_bias, BanFirst):
            del given["logit_bias"]
        return given

    def _late(self, said: Sampling | None) -> tuple[tuple[str | StopOf, ...], tuple[str, ...]]:
        """Stop strings, where one is a token of a reply, and the requests whose first tokens are banned."""
        if said is None:
            return (), ()
        stops = [
            StopOf(self._ids(stop.reply_of)[0], stop.token) if isinstance(stop, StopToken) else stop
            for stop in said.stop or ()
        ]
        bias = said.logit_bias
        bans = self._ids(bias.ban_first_of) if isinstance(bias, BanFirst) else []
        late = any(isinstance(stop, StopOf) for stop in stops)
        return tuple(stops) if late else (), tuple(bans)

    def _ids(self, name: str) -> list[str]:
        return [one.request.id for one in self.made[name]]

    def adapter(self, name: str) -> str:
        """The name, where the target serves such an adapter; else Unobservable."""
        if name not in self.facts.adapters:
            there = ", ".join(self.facts.adapters) or "none is known"
            raise Unobservable(f"the target serves no adapter {name!r} ({there})")
        return name

    def _leave(self, step: Request) -> dict[str, Any] | None:
        if step.leave is None:
            return None
        if step.leave.how == "abort" and not self.facts.has_abort:
            raise Unobservable("the target has no route that ends a request")
        return step.leave.model_dump(exclude_none=True)

    def _prompts(self, is_ids: bool) -> Prompts:
        """One maker for each form, kept: it finds out once which tokens are plain."""
        if is_ids not in self._makers:
            texts = self.spec.texts
            self._makers[is_ids] = Prompts(texts, self.symbols, self.vocabulary, is_ids, self._earlier)
        return self._makers[is_ids]

    def _earlier(self, name: str) -> list[tuple[str, Body]]:
        return [(one.request.id, one.body) for one in self.made[name]]

    def _tokens(self, length: int | str, loc: Location) -> int:
        return positive(length, self.symbols, loc)


_NO_CHAT = "the target has no chat route"


def _complete(template: PlannedRequest, draft: Draft, body: Body) -> Made:
    request = template if draft.waits else completed(template, draft, lambda id: None)
    return Made(request, draft, body)


Pieces = tuple[Piece, ...]


def _text_turn(last: Made | None, opening: Pieces, adds: Pieces, is_ids: bool) -> Draft:
    before = opening if last is None else (*_flat(last.draft.body), ReplyOf(last.request.id))
    return Draft((before, adds), is_ids=is_ids)


def _chat_turn(last: Made | None, opening: Pieces, adds: Pieces, is_ids: bool) -> Draft:
    """What opens a conversation is the system's, what a turn adds the user's."""
    if last is None:
        return Draft(messages=(("system", (opening,)), ("user", (adds,))), is_ids=is_ids)
    reply = ("assistant", ((ReplyOf(last.request.id),),))
    return Draft(messages=(*last.draft.messages, reply, ("user", (adds,))), is_ids=is_ids)


def _flat(body: Body) -> tuple[Piece, ...]:
    return tuple(piece for group in body for piece in group)

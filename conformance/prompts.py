"""Prompt parts made concrete for one target: exact tokens or words, from seeds alone.

Knows the texts of a spec, the target's vocabulary, and lengths in its numbers. Does not know steps, salts or
requests (`requesting.py`), nor what a request will answer: a reply that a later prompt needs stays a
`ReplyOf` until the plan is driven (`drafts.py`).
"""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from conformance.lengths import LengthError, UnknownHere, evaluate
from conformance.marks import Location
from conformance.spec import (
    ChangedPart,
    HeadPart,
    Length,
    LiteralPart,
    MarkerPart,
    Part,
    RenderedPart,
    RepeatPart,
    ReplyPart,
    Text,
    UniquePart,
)

Prompt = Sequence[int] | str
"""Token ids, or text where the target takes none."""

_SEEDS_APART = 64  # requests of a step before the first ids of the next seed begin
_DRAWS = 4096  # draws that show every plain token of a small vocabulary
_MARKER = 12  # letters; 26 to the 12th leaves no two requests of a run the same


class Vocabulary(Protocol):
    """Harmless tokens of a target: no special ones, and text that encodes back to the same ids."""

    @property
    def is_ids(self) -> bool:
        """Whether the target takes ids; else it gets words."""

    def ids(self, count: int, seed: int) -> list[int]:
        """`count` ids drawn by `random.Random(seed)`; a longer draw begins with a shorter one."""

    def text(self, count: int, seed: int) -> str:
        """Words worth about `count` tokens, drawn the same way, with a space between."""

    def encode(self, text: str) -> list[int]:
        """Ids of a literal text. Raises ValueError where that is not possible."""


class PlanError(ValueError):
    """A spec that cannot be on this target; `loc` is the place in the file."""

    def __init__(self, message: str, loc: tuple[int | str, ...] = ()) -> None:
        super().__init__(message)
        self.loc = loc


class Unobservable(Exception):
    """The target lacks what the spec needs; the reason is the message. No mistake of the spec."""


class Untold(Unobservable):
    """A length needs a number that the target does not tell."""

    def __init__(self, message: str, symbol: str) -> None:
        super().__init__(message)
        self.symbol = symbol


@dataclass(frozen=True)
class ReplyOf:
    """What the request with this id generated, or was rendered to: known once it has ended."""

    id: str
    rendered: bool = False


Piece = Prompt | ReplyOf
Body = tuple[tuple[Piece, ...], ...]
"""A prompt by its parts; a part that repeats another prompt has all pieces of that one."""


@dataclass(frozen=True)
class Asker:
    """Which request a part is for: its id, its place in the step (`place`), and in all rounds (`index`)."""

    id: str
    index: int
    place: int


@dataclass(frozen=True)
class Prompts:
    """Makes prompts of one workload. `earlier(name)` are the bodies of a step above, in order."""

    texts: Mapping[str, Text]
    symbols: Mapping[str, int]
    vocabulary: Vocabulary
    is_ids: bool
    earlier: Callable[[str], Sequence[tuple[str, Body]]]

    def body(self, parts: Sequence[Part], loc: Location, asker: Asker) -> Body:
        return tuple(self._part(part, (*loc, k), asker) for k, part in enumerate(parts))

    def draw(self, count: int, seed: int) -> Prompt:
        draw = self.vocabulary.ids if self.is_ids else self.vocabulary.text
        return draw(count, seed)

    def tokens(self, length: Length, loc: Location) -> int:
        """A length in tokens of this target; Unobservable or PlanError where it is none."""
        return positive(length, self.symbols, loc)

    def _part(self, part: Part, loc: Location, asker: Asker) -> tuple[Piece, ...]:
        if isinstance(part, RepeatPart):
            return self._repeated(part, loc, asker)
        if isinstance(part, ReplyPart):
            return (ReplyOf(self.earlier(part.reply_of)[0][0]),)
        if isinstance(part, RenderedPart):
            return (ReplyOf(self.earlier(part.rendered_of)[0][0], rendered=True),)
        return (self._known(part, loc, asker),)

    def _known(
        self,
        part: str | UniquePart | HeadPart | LiteralPart | MarkerPart | ChangedPart,
        loc: Location,
        asker: Asker,
    ) -> Prompt:
        if isinstance(part, UniquePart):
            return self._unique(part, loc, asker)
        if isinstance(part, LiteralPart):
            return self._literal(part.literal, loc)
        if isinstance(part, MarkerPart):
            return self._literal(marker(asker.id), loc)
        if isinstance(part, HeadPart):
            return self._head_of(part, loc)
        if isinstance(part, ChangedPart):
            return self._changed(part, loc)
        return self.draw(self._text_tokens(part), self.texts[part].seed)

    def _repeated(self, part: RepeatPart, loc: Location, asker: Asker) -> tuple[Piece, ...]:
        bodies = self.earlier(part.repeat_of)
        place = 0 if len(bodies) == 1 else asker.place
        if place >= len(bodies):
            message = f"{part.repeat_of!r} has {len(bodies)} requests, and this is number {place + 1}"
            raise PlanError(message, (*loc, "repeat_of"))
        return tuple(piece for group in bodies[place][1] for piece in group)

    def _unique(self, part: UniquePart, loc: Location, asker: Asker) -> Prompt:
        """The first token says which request and which seed this is; the rest is random."""
        count = self.tokens(part.unique, (*loc, "unique"))
        if asker.place >= len(self._firsts):
            plain = f"{len(self._firsts)} plain tokens"
            raise PlanError(f"request {asker.place} has no first token of its own: {plain}", loc)
        return self.unique(count, part.seed, asker.index)

    def unique(self, count: int, seed: int, index: int) -> Prompt:
        """`count` tokens of request `index`; first tokens differ as far as there are enough of them."""
        first = self._firsts[(seed * _SEEDS_APART + index) % len(self._firsts)]
        drawn = self.draw(count, seed_of("unique", seed, index))
        if isinstance(drawn, str):
            return " ".join([str(first), *drawn.split()[1:]])
        return [int(first), *drawn[1:]]

    @cached_property
    def _firsts(self) -> list[int | str]:
        """Every plain token, in an order that is the same for all specs."""
        drawn = self.draw(_DRAWS, 0)
        return list(dict.fromkeys(drawn.split() if isinstance(drawn, str) else drawn))

    def _literal(self, text: str, loc: Location) -> Prompt:
        if not self.is_ids:
            return text
        try:
            return self.vocabulary.encode(text)
        except ValueError as error:
            raise PlanError(f"the literal cannot be sent as token ids: {error}", loc) from None

    def _head_of(self, part: HeadPart, loc: Location) -> Prompt:
        whole, count = self._text_tokens(part.head_of), self.tokens(part.tokens, (*loc, "tokens"))
        if count > whole:
            raise PlanError(
                f"a head of {count} tokens of {part.head_of!r}, which has {whole}", (*loc, "tokens")
            )
        return self.draw(count, self.texts[part.head_of].seed)

    def _changed(self, part: ChangedPart, loc: Location) -> Prompt:
        whole, at = self._text_tokens(part.changed), positive(part.at, self.symbols, (*loc, "at"), least=0)
        if at >= whole:
            message = f"no token stands at {at} of {part.changed!r}, which has {whole}: 0 to {whole - 1}"
            raise PlanError(message, (*loc, "at"))
        seed = self.texts[part.changed].seed
        text = self.draw(whole, seed)
        if isinstance(text, str):
            return _other_letter(text, len(self.draw(at, seed)) if at else 0)
        return [*text[:at], next(int(f) for f in self._firsts if f != text[at]), *text[at + 1 :]]

    def _text_tokens(self, name: str) -> int:
        return self.tokens(self.texts[name].tokens, ("texts", name, "tokens"))


def marker(id: str) -> str:
    """A word that the request with this id alone has in its prompt, the same in every run."""
    return "".join(random.Random(seed_of("marker", id)).choices(string.ascii_lowercase, k=_MARKER))


def _other_letter(text: str, at: int) -> str:
    """The text with its first letter from `at` on replaced."""
    at = next((i for i in range(at, len(text)) if text[i].isalnum()), at)
    return f"{text[:at]}{'q' if text[at : at + 1] != 'q' else 'z'}{text[at + 1 :]}"


def positive(length: Length, symbols: Mapping[str, int], loc: Location, least: int = 1) -> int:
    """A length as a number of tokens, at least 1; a position, which is one too, begins at 0."""
    try:
        tokens = evaluate(length, symbols)
    except UnknownHere as unknown:
        raise Untold(f"{unknown}, and the length {length!r} needs it", unknown.symbol) from None
    except LengthError as error:
        raise PlanError(str(error), loc) from None
    if tokens < least:
        raise PlanError(f"{length!r} is {tokens} tokens on this target; at least {least} is needed", loc)
    return tokens


def joined(pieces: Sequence[Prompt | None]) -> Prompt:
    """One prompt of several pieces of one kind; words get a space between, None glues what follows."""
    known = [piece for piece in pieces if piece is not None]
    if not any(isinstance(piece, str) for piece in known):
        return [token for piece in known if not isinstance(piece, str) for token in piece]
    text, glued = "", True
    for piece in pieces:
        text += "" if piece is None else (str(piece) if glued else f" {piece}")
        glued = piece is None
    return text


def seed_of(*words: object) -> int:
    """A seed that is the same on every machine and far from the small numbers that specs use."""
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:8])

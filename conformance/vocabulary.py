"""Harmless tokens for prompts: plain ids where a target takes ids, letters or words where it takes text.

Knows how prompts are drawn, the same on every machine. Does not know where the ids or the measured
characters per token came from (`probe.py`), nor which prompt a case wants (`plan.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

# Everyday words, most of them one token with the space before them in a trained tokenizer. Only ASCII
# letters, so that a byte tokenizer spends one token a character.
_TEXT = """
    able acid aged also area army away baby back ball band bank base bath bear beat been bell best bird
    blow blue boat body bone book born both bowl bulk burn bush busy call calm came camp card care cash
    cast cell chat chip city club coal coat code cold come cook cool cope copy core cost crew crop dark
    data date dawn days dead deal dear debt deep desk dial diet disc dish door dose down draw drew drop
    drug dual duke dust duty each earn ease east easy edge else even ever evil exit face fact fail fair
    fall farm fast fate fear feed feel feet fell file fill film find fine fire firm fish five flat flow
    food foot ford form fort four free from fuel full fund gain game gate gave gear gift girl give glad
"""
WORDS = tuple(_TEXT.split())
_USUAL = 4.0
"""Characters a token of a trained tokenizer, where nothing was measured."""
_SPACED = 5
"""Characters of a word and the space after it."""

ASCII = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "|")
"""Printable characters that never spell a special token such as <|end|>."""
LETTERS = ASCII + "".join(chr(code) for code in range(0xC0, 0x180) if chr(code).isalpha())
_WORD = 16
"""Letters between spaces: enough that the space stays a rare token."""


class Ids:
    """Prompts as token ids, drawn from the plain ones of the target.

    Messages of a chat can only be text: `spoken` draws that.
    """

    is_ids = True

    def __init__(
        self,
        plain: Sequence[int],
        encode: Callable[[str], list[int]],
        spoken: Words | None = None,
    ) -> None:
        self.plain = tuple(plain)
        self._encode, self._spoken = encode, spoken or Words(_USUAL)

    def ids(self, count: int, seed: int) -> list[int]:
        return random.Random(seed).choices(self.plain, k=count)

    def text(self, count: int, seed: int) -> str:
        return self._spoken.text(count, seed)

    def encode(self, text: str) -> list[int]:
        return self._encode(text)


class Words:
    """Prompts as words; `per_token` is the measured number of characters a token stands for."""

    is_ids = False

    def __init__(self, per_token: float) -> None:
        self.per_token = per_token

    def ids(self, count: int, seed: int) -> list[int]:
        raise TypeError("this target takes text")

    def text(self, count: int, seed: int) -> str:
        """Whole words only, so that parts meet at a space; a longer draw begins with a shorter one."""
        number = max(1, round((count * self.per_token + 1) / _SPACED))
        return " ".join(random.Random(seed).choices(WORDS, k=number))

    def encode(self, text: str) -> list[int]:
        raise ValueError("this target takes text only")


class Letters(Words):
    """Prompts as letters, for a tokenizer that makes each one a token: lengths are exact.

    Everyday words would use a few dozen of its tokens, too few to tell one prompt from another.
    """

    def __init__(self, letters: str) -> None:
        super().__init__(per_token=1.0)
        self.letters = letters

    def text(self, count: int, seed: int) -> str:
        """Cut at the exact letter. Words that follow each other begin with different letters."""
        draw = random.Random(seed)
        initials = draw.sample(self.letters, len(self.letters))
        words = (
            initials[i % len(initials)] + "".join(draw.choices(self.letters, k=_WORD - 1))
            for i in range(count // (_WORD + 1) + 1)
        )
        return " ".join(words)[:count].rstrip()

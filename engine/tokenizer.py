"""Text to ids and back: the built-in byte tokenizer, and a thin wrapper for a Hugging Face one.

Knows: vocabularies, special ids, the chat template.
Does not know: models, requests, which ids a prompt or a sampler will pick.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

EOS = "<|endoftext|>"
CHAT_START = "<|im_start|>"
CHAT_END = "<|im_end|>"
SPECIALS = (EOS, CHAT_START, CHAT_END)
LETTERS = tuple(chr(c) for c in (*range(0xC0, 0x180), *range(0x400, 0x43F)) if chr(c).isalpha())
"""Merged tokens: 253 letters of two UTF-8 bytes (Latin-1, Latin Extended-A, Cyrillic); 512 ids in all."""
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_SLICE = 1 << 14


class Tokenizer(Protocol):
    """What the engine asks of a tokenizer. Ids are ints in [0, vocab_size)."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a reply."""

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``; special tokens written out in it become their ids."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; bytes that are no UTF-8 become U+FFFD. Raises ValueError for an unknown id."""

    def token_text(self, token: int) -> str:
        """Printable form of one id. Raises ValueError for an unknown id."""

    def render_chat(
        self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Ids of a chat by the template."""

    def plain_ids(self) -> list[int]:
        """Ids that are not special, have printable text of their own, and come back from it as themselves."""


class ByteTokenizer:
    """256 byte ids, then `LETTERS`, then `SPECIALS`: the byte-level BPE that tokenizer.json spells out.

    Its `plain_ids` are the ids that `tiny` can generate: printable ASCII and the letters, without the space
    and ``|``, so that no sequence of them spells a special token and every sequence encodes to itself.
    """

    def __init__(self) -> None:
        pieces = [*(bytes([b]) for b in range(256)), *(letter.encode() for letter in LETTERS)]
        self._bytes = [*pieces, *(special.encode() for special in SPECIALS)]
        self._ids = {piece: i for i, piece in enumerate(self._bytes)}
        # A letter's two bytes, or any one byte: merges never overlap, so left to right is what BPE does.
        self._pieces = re.compile(b"|".join(re.escape(p.encode()) for p in LETTERS) + b"|.", re.DOTALL)
        self._specials = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The bytes that each id stands for, by id."""
        return tuple(self._bytes)

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({self.id_of(EOS), self.id_of(CHAT_END)})

    def id_of(self, piece: str) -> int:
        """Id of a special token or of one character that is a token. Raises KeyError for any other text."""
        return self._ids[piece.encode()]

    def encode(self, text: str) -> list[int]:
        return [i for part in self._specials.split(text) for i in self._encode_part(part)]

    def _encode_part(self, part: str) -> list[int]:
        if part in SPECIALS:
            return [self.id_of(part)]
        # In slices, since one call over megabytes would stop every other thread; no letter straddles two.
        slices = (part[at : at + _SLICE] for at in range(0, len(part), _SLICE))
        # A lone surrogate has no UTF-8 form.
        found = (self._pieces.findall(text.encode("utf-8", "replace")) for text in slices)
        return [self._ids[piece] for pieces in found for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._piece(i) for i in ids).decode("utf-8", "replace")

    def token_text(self, token: int) -> str:
        piece = self._piece(token)
        text = piece.decode("utf-8", "replace")
        return text if text.isprintable() and "\ufffd" not in text else "".join(f"<0x{b:02X}>" for b in piece)

    def _piece(self, token: int) -> bytes:
        if not 0 <= token < len(self._bytes):
            raise ValueError(f"token id {token} is outside the vocabulary 0..{len(self._bytes) - 1}")
        return self._bytes[token]

    def render_chat(
        self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True
    ) -> list[int]:
        text = _chat_template().render(messages=list(messages), add_generation_prompt=add_generation_prompt)
        return self.encode(text)

    def plain_ids(self) -> list[int]:
        return [i for i in range(0x21, 0x7F) if i != ord("|")] + list(range(256, 256 + len(LETTERS)))


@functools.cache
def byte_tokenizer() -> ByteTokenizer:
    """The one of this process: it never changes, and its tables take longer than a small engine."""
    return ByteTokenizer()


@functools.cache
def _chat_template() -> Any:
    from jinja2 import Environment, StrictUndefined  # 50 ms that only chat needs

    return Environment(undefined=StrictUndefined).from_string(CHAT_TEMPLATE)


class HFTokenizer:
    """A Hugging Face tokenizer (transformers) behind the same protocol, for models loaded from a path."""

    def __init__(self, tokenizer: Any, eos_ids: Sequence[int] = ()) -> None:
        self._hf = tokenizer
        self._eos = frozenset(eos_ids) or frozenset({tokenizer.eos_token_id} - {None})

    @property
    def vocab_size(self) -> int:
        return len(self._hf)

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._eos

    def save(self, folder: Path) -> None:
        """Write its files (tokenizer.json and what belongs to it) into a folder that is there."""
        self._hf.save_pretrained(str(folder))

    def encode(self, text: str) -> list[int]:
        return list(self._hf.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._hf.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_text(self, token: int) -> str:
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"token id {token} is outside the vocabulary 0..{self.vocab_size - 1}")
        text = self.decode([token])
        return (
            text
            if text.isprintable() and "\ufffd" not in text
            else str(self._hf.convert_ids_to_tokens(token))
        )

    def render_chat(
        self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True
    ) -> list[int]:
        if not self._hf.chat_template:
            raise ValueError("this model's tokenizer has no chat template; use /v1/completions")
        text = self._hf.apply_chat_template(
            list(messages), add_generation_prompt=add_generation_prompt, tokenize=False
        )
        return list(self._hf.encode(text, add_special_tokens=False))

    @functools.cached_property
    def _plain(self) -> list[int]:
        special = set(self._hf.all_special_ids)
        return [i for i in range(self.vocab_size) if i not in special and self._round_trips(i)]

    def _round_trips(self, token: int) -> bool:
        text = self.decode([token])
        return (
            text.isprintable()
            and bool(text.strip())
            and self._hf.encode(text, add_special_tokens=False) == [token]
        )

    def plain_ids(self) -> list[int]:
        return self._plain

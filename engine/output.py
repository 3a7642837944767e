"""A choice's text as it grows: whole characters only, and never part of a stop string.

Knows token ids, text and stop strings of one choice. Does not know logits, batches or HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.messages import TextCodec

_BROKEN = "�"
_WINDOW = 8
"""Ids decoded together with new ones, since some tokenizers join a token's text to its neighbours'."""


class Output:
    """Feeds on ids, gives back text that is safe to send."""

    def __init__(self, codec: TextCodec, stop: tuple[str, ...]) -> None:
        self._codec = codec
        self._stop = stop
        self._ids: list[int] = []
        self._read = 0
        self._held = ""
        self.stopped = False

    def push(self, token: int, may_stop: bool = True) -> str:
        """Text that this token releases; sets `stopped` when a stop string is complete and may stop."""
        self._ids.append(token)
        text = self._held + self._new_text()
        stops = self._stop if may_stop else ()
        at = min((found for s in stops if (found := text.find(s)) >= 0), default=-1)
        if at >= 0:
            self.stopped, self._held = True, ""
            return text[:at]
        keep = max((_overlap(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was still held back when the choice ended without a stop string."""
        text, self._held = self._held + self._decode_new(), ""
        self._read = len(self._ids)
        return "" if self.stopped else text

    def _new_text(self) -> str:
        text = self._decode_new()
        if text.endswith(_BROKEN) and len(self._ids) - self._read < 4:
            return ""
        self._read = len(self._ids)
        return text

    def _decode_new(self) -> str:
        start = max(0, self._read - _WINDOW)
        known = self._codec.decode(self._ids[start : self._read])
        return self._codec.decode(self._ids[start:])[len(known) :]


def pieces(codec: TextCodec, ids: Sequence[int]) -> list[str]:
    """The text that each of these ids adds; together they are the text of all."""
    output = Output(codec, ())
    made = [output.push(token) for token in ids]
    made[-1] += output.finish()
    return made


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0

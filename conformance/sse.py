"""Server-sent events cut out of a stream of bytes, in time and memory that grow with what came and no faster.

Knows events and their `data` fields. Does not know sockets, nor what a payload says.
"""

from __future__ import annotations

MOST_OF_ONE = 8 << 20
"""Bytes of one event: room for the logprobs of a prompt of some ten thousand tokens."""


class EndlessEvent(Exception):
    """An event that is longer than any that could be meant; the message says so."""


class EventSplitter:
    """Takes bytes as they come and gives the payloads that they complete."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._held = b""
        """A carriage return at the end of a piece: what it ends shows with the next one."""

    @property
    def rest(self) -> bytes:
        """What has no end yet."""
        return bytes(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes; comments (keep-alives) are passed over. Raises EndlessEvent."""
        data, self._held = self._held + data, b""
        if data.endswith(b"\r"):
            data, self._held = data[:-1], b"\r"
        looked_at = max(0, len(self._rest) - 1)
        self._rest += data.replace(b"\r\n", b"\n")
        # Only what is new is looked at: an endless line would else be read again with every piece of it.
        whole: list[bytes] = []
        if self._rest.find(b"\n\n", looked_at) >= 0:
            *whole, rest = bytes(self._rest).split(b"\n\n")
            self._rest = bytearray(rest)
        if len(self._rest) > MOST_OF_ONE:
            raise EndlessEvent(f"an event of the stream has no end within {MOST_OF_ONE / 2**20:g} MiB")
        return [payload for event in whole if (payload := _payload(event))]


def _payload(event: bytes) -> bytes:
    fields = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(fields)

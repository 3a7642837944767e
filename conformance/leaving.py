"""How and when a client walks away from a request that it sent.

Knows sockets and the ways to end one. Does not know HTTP, nor how far a reply is: it is told (`wire.py`).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

How = Literal["rst", "fin", "half_close", "stop_reading", "abort"]
Phase = Literal["queued", "prefilling", "first_token", "decoding", "last_step"]


@dataclass(frozen=True)
class Leaving:
    """When to walk away, and how.

    After `tokens` pieces that `is_token` accepts, `seconds` after sending, or once `until` holds: the first
    of those that are given. `phase` is the one meant, `last` the tokens after which one step is left.
    """

    how: How
    is_token: Callable[[bytes], bool]
    tokens: int | None = None
    seconds: float | None = None
    until: Callable[[], bool] | None = None
    phase: Phase = "decoding"
    last: int | None = None
    pause: float = 1.0
    """stop_reading: seconds for which nothing is read before the connection is closed."""
    abort: Callable[[bytes], None] | None = None
    """abort: ends the request by other means; is given the first event of the stream, if any came."""


def walk_away(sock: socket.socket, leaving: Leaving) -> bool:
    """Leaves; returns whether that closed the connection.

    `rst`: a reset, as a killed client sends it. `fin`: an orderly end, as a closed tab sends it.
    `half_close`: says that nothing more will be sent, and reads on. `abort` reads on as well.
    """
    if leaving.how in ("half_close", "abort"):
        if leaving.how == "half_close":
            sock.shutdown(socket.SHUT_WR)
        return False
    if leaving.how == "stop_reading":
        time.sleep(leaving.pause)
    elif leaving.how == "rst":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    else:
        # Data that was not read turns a plain close into a reset, a shutdown beforehand does not.
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
    return True

"""How a body leaves: as JSON, as an error, or as a stream of server-sent events.

Knows content types, headers and framing. Does not know what is in the bodies.
"""

from __future__ import annotations

import asyncio
import json

from starlette.responses import Response
from starlette.types import Send

from engine.api import ApiError
from engine.fields import Json

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


def dump(value: Json) -> bytes:
    """JSON bytes. Floats keep every bit; ASCII only, so that no reader splits a line inside a string."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def json_response(body: Json, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON reply."""
    return Response(dump(body), status, headers, media_type="application/json")


def error_response(error: ApiError, headers: dict[str, str] | None = None) -> Response:
    """An OpenAI-shaped error; a busy engine says when to come back."""
    retry = {"Retry-After": "1"} if error.status == 503 else {}
    return json_response(error.body(), error.status, {**(headers or {}), **retry})


class EventStream:
    """Server-sent events on an ASGI `send`. `started` tells whether a status can still be chosen."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def start(self) -> None:
        """Send status and headers, once."""
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})

    async def send(self, body: Json) -> None:
        await self._write(b"data: " + dump(body) + b"\n\n", more=True)

    async def finish(self) -> None:
        """End a stream that is complete; only such a one says [DONE]."""
        await self._write(b"data: [DONE]\n\n", more=False)

    async def fail(self, error: ApiError) -> None:
        """End a stream that broke after its status was sent."""
        await self._write(b"data: " + dump(error.body()) + b"\n\n", more=False)

    async def _write(self, data: bytes, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        # A send that finds room does not wait, and only a loop that turns can say that the client has gone.
        await asyncio.sleep(0)

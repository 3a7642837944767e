"""The lines that every failure ends with: a request to send again, and a judgement to repeat without a
server.

Knows shells and where request bodies are kept. Does not know why something failed. A key never appears: the
line names the environment variable that holds it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

from conformance.history import Facts, PlannedRequest
from conformance.launch import COMMAND, engine_line

INLINE = 400
"""Longest body, in bytes, that is worth pasting; longer ones go to a file."""

KEY_VARIABLE = "CONFORMANCE_API_KEY"


def curl_line(url: str, body: bytes, folder: Path, with_key: bool = False) -> str:
    """A curl command that sends `body` to the full `url`.

    A long body is written to `folder`/<digest>.json, named after its content, and read from there by the
    line.
    """
    words = ["curl", "-sS", "-N", url, "-H", "Content-Type: application/json"]
    key = f' -H "Authorization: Bearer ${KEY_VARIABLE}"' if with_key else ""
    return f"{shlex.join(words)}{key} -d {_data(body, folder)}"


def start_lines(facts: Facts, url: str) -> list[str]:
    """What to type before the curl line: the server of the run is gone, unless it was an endpoint."""
    if facts.how == "engine":
        return [facts.machine.get(COMMAND, engine_line(()))]
    return [f"# first start the server of --serve at {url}"] if facts.how == "serve" else []


def _data(body: bytes, folder: Path) -> str:
    # curl reads a value that begins with @ as the name of a file.
    if len(body) <= INLINE and not body.startswith(b"@"):
        return shlex.quote(body.decode())
    return shlex.quote(f"@{write_body(body, folder)}")


def write_body(body: bytes, folder: Path) -> Path:
    """Keep a request body under its digest; writing the same one twice is one file."""
    path = folder / f"{hashlib.sha256(body).hexdigest()[:16]}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return path


def completion_body(plan: PlannedRequest, facts: Facts) -> bytes:
    """A request in the common OpenAI form, where the target's own rendering is not at hand."""
    prompt = plan.prompt_ids if plan.prompt_ids is not None else plan.prompt_text
    asked = {"messages": plan.messages} if plan.messages else {"prompt": prompt}
    model = f"{facts.model}:{plan.adapter}" if plan.adapter else facts.model
    body: dict[str, Any] = {"model": model, **asked, "max_tokens": plan.max_tokens}
    body |= {"temperature": 0, "stream": plan.stream, **plan.sampling}
    body |= {"stream_options": {"include_usage": True}} if plan.stream else {}
    body |= {"cache_salt": plan.salt} if facts.has_salt else {}
    return json.dumps(body).encode()


def route_of(plan: PlannedRequest) -> str:
    return "/v1/chat/completions" if plan.messages else "/v1/completions"


def body_of(request: bytes) -> bytes:
    """The body of a rendered HTTP request; empty when it has none."""
    return request.partition(b"\r\n\r\n")[2]


def replay_line(node_id: str, history: Path) -> str:
    """A pytest command that judges one item again from a history."""
    return f"pytest {shlex.quote(node_id)} --replay={shlex.quote(str(history))}"

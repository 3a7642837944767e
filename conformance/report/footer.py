"""The lines that every failure ends with: a request to send again, and a judgement to repeat without a
server.

Knows shells and where request bodies are kept. Does not know why something failed, nor what a body holds
(`rendering.py`). A key never appears: the line names the environment variable that holds it (`access.py`).
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from conformance.history import Facts
from conformance.launch import COMMAND, engine_line

INLINE = 400
"""Longest body, in bytes, that is worth pasting; longer ones go to a file."""


def curl_line(url: str, body: bytes, folder: Path, access: Sequence[str] = ()) -> str:
    """A curl command that sends `body` to the full `url`.

    `access` are options of curl as the shell reads them (`access.shown`). A long body is written to
    `folder`/<digest>.json, named after its content, and read from there by the line.
    """
    words = ["curl", "-sS", "-N", url, "-H", "Content-Type: application/json"]
    return " ".join([shlex.join(words), *access, "-d", _data(body, folder)])


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


def replay_line(node_id: str, history: Path) -> str:
    """A pytest command that judges one item again from a history."""
    return f"pytest {shlex.quote(node_id)} --replay={shlex.quote(str(history))}"

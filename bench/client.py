"""A bundled engine as a process, and requests to it timed from outside.

Knows how to start the engine and read a stream. Does not know what a measurement is about. Independent of
the harness on purpose: what the two say of one engine can be compared.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import requests

from conformance.footprint import measure, tree

TIMEOUT = 300.0
_ENDING = 30.0
"""Seconds that a process which was told to end has for it."""
_LOOK_SECONDS, _LOOK_MOST, _LOOK_SHARE = 0.05, 0.5, 10
"""Least and most seconds between two looks at a footprint; in between, so many times what a look takes."""


def say(what: str, value: str, bound: str = "") -> None:
    """One line of a bench: what was measured, and what it should be."""
    print(f"  {what:<58} {value:>12}{f'   should be {bound}' if bound else ''}", flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Reply:
    """One streamed completion; times are seconds since its burst began."""

    first: float = 0.0
    ended: float = 0.0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def cached(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])


class Server:
    """A running engine."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid
        self.plain = self._plain_ids()

    def _plain_ids(self) -> list[int]:
        text = "".join(map(chr, range(33, 127)))
        ids: list[int] = self.post("/tokenize", {"prompt": text})["tokens"]
        return ids

    def post(self, path: str, body: dict[str, Any]) -> Any:
        reply = requests.post(self.url + path, json=body, timeout=TIMEOUT)
        reply.raise_for_status()
        return reply.json()

    def stats(self) -> dict[str, Any]:
        reply: dict[str, Any] = requests.get(self.url + "/v1/cache/stats", timeout=TIMEOUT).json()
        return reply

    def prompt(self, length: int, seed: int) -> list[int]:
        return random.Random(seed).choices(self.plain, k=length)

    def burst(self, prompts: Sequence[list[int]], salt: str, max_tokens: int) -> list[Reply]:
        """Send all at once; a salt that ends in `*` becomes another one for each request."""
        replies = [Reply() for _ in prompts]
        barrier = threading.Barrier(len(prompts))
        start = time.perf_counter()
        threads = [
            threading.Thread(
                target=self._stream, args=(p, salt.replace("*", str(i)), max_tokens, r, barrier, start)
            )
            for i, (p, r) in enumerate(zip(prompts, replies, strict=True))
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        return replies

    def _stream(
        self, prompt: list[int], salt: str, max_tokens: int, reply: Reply,
        barrier: threading.Barrier, start: float,
    ) -> None:  # fmt: skip
        body = {"prompt": prompt, "max_tokens": max_tokens, "cache_salt": salt, "ignore_eos": True,
                "temperature": 0, "logprobs": 0, "return_token_ids": True, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        data = json.dumps(body).encode()
        barrier.wait()
        with requests.post(self.url + "/v1/completions", data=data, timeout=TIMEOUT, stream=True,
                           headers={"Content-Type": "application/json"}) as answer:  # fmt: skip
            for line in answer.iter_lines():
                if line.startswith(b"data: {"):
                    _take(reply, json.loads(line[6:]), time.perf_counter() - start)
        reply.ended = time.perf_counter() - start


def _take(reply: Reply, chunk: dict[str, Any], at: float) -> None:
    reply.usage = chunk.get("usage") or reply.usage
    for choice in chunk["choices"]:
        ids = choice.get("token_ids") or []
        if ids and not reply.ids:
            reply.first = at
        reply.ids += ids
        reply.logprobs += (choice.get("logprobs") or {}).get("token_logprobs") or []


@contextmanager
def engine(*options: str) -> Iterator[Server]:
    """An engine on a free port, ended with the block."""
    command = [sys.executable, "-m", "engine", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("listening on "):
                raise RuntimeError(f"the engine did not start: {' '.join(command)}")
            yield Server(line.split()[-1], process.pid)
        finally:
            process.terminate()
            process.wait(_ENDING)


def said(command: Sequence[str], limit: float) -> str:
    """All that a command prints. One that takes longer is ended in order, as when this process must end;
    TimeoutExpired then."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            return process.communicate(timeout=limit)[0]
        except BaseException:
            process.terminate()  # it has children to end
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_ENDING)
            process.kill()
            raise


class Peak:
    """Highest footprint of a process tree while the block runs, bytes."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.bytes = 0

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        pause = _LOOK_SECONDS
        while not self._done.wait(pause):
            # The more a process holds the longer a look takes, and all of it is time that the server lacks.
            pause = min(_LOOK_MOST, max(_LOOK_SECONDS, _LOOK_SHARE * self._look()))
        self._look()

    def _look(self) -> float:
        """Seconds that it took."""
        start = time.perf_counter()
        self.bytes = max(self.bytes, measure(tree(self._pid)))
        return time.perf_counter() - start

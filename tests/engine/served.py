"""A whole engine on a real socket: worker, routes and server in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import uvicorn

from engine.cli import bind
from engine.config import EngineConfig
from engine.server import create_app
from engine.serving import uvicorn_config
from engine.testmode import worker_for
from tests.engine.fakes import PATIENCE, Client


@contextmanager
def engine(**settings: Any) -> Iterator[Client]:
    """A client of a small engine in test mode: digest model, blocks and tiles of 16 tokens, batches of 4."""
    small: dict[str, Any] = {
        "model": "digest", "block_size": 16, "grid": 16, "chunk": 64, "blocks": 64, "max_batch": 4,
        "port": 0, "test_mode": True,
    }  # fmt: skip
    config = replace(EngineConfig(), **{**small, **settings})
    worker = worker_for(config)
    worker.start()
    listener = bind(config)
    server = uvicorn.Server(uvicorn_config(create_app(worker, config)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    listener.listen()
    thread.start()
    try:
        yield Client(listener.getsockname()[:2])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
        worker.stop()
        assert not thread.is_alive(), "the server did not stop"
        assert not worker.alive, "the engine did not stop"

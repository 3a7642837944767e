"""Small specs driven on the bundled engine: YAML in, the recorded workload out.

Knows how a spec becomes a workload. Does not judge: a test looks at the facts itself.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from conformance.backend import Backend
from conformance.drive import Driver
from conformance.fleet import Fleet
from conformance.history import Workload
from conformance.load import load
from conformance.record import Recorder, read
from conformance.session import Options, Session
from conformance.spec import Serve
from conformance.target import Target, TargetOptions

_FRAME = """\
spec: 1
id: demo/case
title: A demonstration
proves: [count/1]
"""
_TEXTS = """\
texts:
  system: {tokens: 4G, seed: 227}
"""
_EXPECT = """
expect:
  - counted: {of: NAME}
"""


class Engine:
    """One engine for many demonstrations, each a session of its own history."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._back = Backend(TargetOptions("engine", timeout=30.0, progress=print))
        self._fleet = self._back.open()

    def run(self, body: str, name: str, rung: str = "", ladder: str = "") -> Workload:
        """The workload of steps (and whatever else stands in `body`); `name` is a step that sends.

        Checks on the way that the file says what the live view says.
        """
        self._count += 1
        path = self._folder / f"case-{self._count}.yaml"
        head = _FRAME + (f"for: {ladder}\n" if ladder else "") + (_TEXTS if "system" in body else "")
        path.write_text(head + textwrap.dedent(body).strip() + _EXPECT.replace("NAME", name))
        loaded = load(path)
        history = self._folder / f"history-{self._count}.jsonl"
        session = Session(Options(scale="ci", history=history), _Shared(self._back, self._fleet))
        try:
            live = session.workload(loaded, rung)
        finally:
            session.close()
        assert read(history).workloads["demo/case", rung] == live
        return live

    def close(self) -> None:
        self._fleet.close()


class _Shared:
    """The back half with servers that outlive a session."""

    def __init__(self, back: Backend, fleet: Fleet) -> None:
        self.errors, self._back, self._fleet = back.errors, back, fleet

    def open(self) -> _Shared:
        return self

    def for_serve(self, serve: Serve) -> AbstractContextManager[Target]:
        return self._fleet.for_serve(serve)

    def driver(self, target: Target, recorder: Recorder, arm: str) -> Driver:
        return self._back.driver(target, recorder, arm)

    def close(self) -> None:
        """The servers go on."""

    def per_token(self) -> float:
        return self._fleet.per_token()


@contextmanager
def demo_engine(folder: Path) -> Iterator[Engine]:
    engine = Engine(folder)
    try:
        yield engine
    finally:
        engine.close()

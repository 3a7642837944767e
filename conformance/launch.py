"""Starting a server as a child process, waiting until it is ready, and ending it with all it started.

Knows commands, ports, process groups and how to show the last words of a child. Does not know what kind
of server it is: whether it is ready is asked of a function. Every wait is bounded.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_POLL = 0.05
_LISTENING = re.compile(r"listening on (https?://\S+)")


class LaunchError(Exception):
    """A server that did not come up; the message gives the command, what happened and its last words."""


class Child:
    """A running command in a process group of its own; what it prints goes to files, never to a pipe."""

    def __init__(self, command: Sequence[str]) -> None:
        """Starts it at once; LaunchError when there is no such program."""
        self.command = tuple(command)
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-")
        self._out, self._err = (Path(self._folder.name) / name for name in ("stdout", "stderr"))
        try:
            with self._out.open("wb") as out, self._err.open("wb") as err:
                self._process = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
                )
        except OSError as error:
            self._folder.cleanup()
            raise LaunchError(f"cannot start `{shlex.join(self.command)}`: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    def ended_within(self, seconds: float) -> bool:
        """Whether it has ended, or does in this time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def output(self) -> str:
        return self._out.read_text(errors="replace")

    def last_words(self, lines: int = 8) -> str:
        """The tail of stderr, or of stdout when stderr is empty."""
        text = self._err.read_text(errors="replace").strip() or self.output().strip()
        return "\n".join(text.splitlines()[-lines:])

    def quoted(self) -> str:
        """The last words as the end of a message, each line indented."""
        lines = self.last_words().splitlines()
        return ":" + "".join(f"\n  {line}" for line in lines) if lines else ": (it printed nothing)"

    def how_it_ended(self) -> str:
        """One phrase on how the process ended, for messages: `exit code 3`, `killed by SIGKILL`."""
        code = self.exit_code()
        if code is None:
            return "still running"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def close(self, grace: float = 5.0) -> None:
        """Ends the whole process group: asked first, then made to. Safe to call twice."""
        for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
            self._signal(number)
            try:
                self._process.wait(wait)
            except subprocess.TimeoutExpired:
                continue
            break
        # The leader is gone, others of its group may have outlived it.
        self._signal(signal.SIGKILL)
        self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return


def free_port() -> int:
    """A port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def engine_command(arguments: Sequence[str]) -> list[str]:
    """The bundled engine on a port of its own choice; goldens and conformance pin the builtin BLAS."""
    fixed = ["--port", "0", "--test-mode", "--blas", "builtin"]
    return [sys.executable, "-m", "engine", "serve", *fixed, *arguments]


def launch_engine(arguments: Sequence[str], timeout: float) -> tuple[Child, str]:
    """Starts the bundled engine; returns the child and its URL once it says that it listens."""
    child = Child(engine_command(arguments))
    wait_until(child, lambda: _LISTENING.search(child.output()) is not None, timeout)
    found = _LISTENING.search(child.output())
    assert found is not None
    return child, found.group(1)


def launch_command(
    command: str, extra: Sequence[str], ready: Callable[[str], bool], timeout: float
) -> tuple[Child, str]:
    """Starts `command` with `{port}` filled in and `extra` appended; returns the child and its URL.

    `ready(url)` is asked until it says yes. LaunchError when the command lacks `{port}`, cannot be
    split, ends early or is not ready within `timeout` seconds.
    """
    if "{port}" not in command:
        raise LaunchError(f"the command must say where the port goes: `{command} --port {{port}}`")
    port = str(free_port())
    try:
        words = [word.replace("{port}", port) for word in shlex.split(command)]
    except ValueError as error:
        raise LaunchError(f"cannot read the command `{command}`: {error}") from None
    child = Child([*words, *extra])
    url = f"http://127.0.0.1:{port}"
    wait_until(child, lambda: ready(url), timeout)
    return child, url


def wait_until(child: Child, ready: Callable[[], bool], timeout: float) -> None:
    """Returns when `ready()`; else ends the child and raises LaunchError with its last words."""
    end = time.monotonic() + timeout
    while not ready():
        if child.exit_code() is not None:
            _give_up(child, f"ended before it was ready ({child.how_it_ended()})")
        if time.monotonic() > end:
            _give_up(child, f"was not ready within {timeout:g} s")
        time.sleep(_POLL)


def _give_up(child: Child, what: str) -> None:
    message = f"`{shlex.join(child.command)}` {what}{child.quoted()}"
    child.close()
    raise LaunchError(message)

"""Starting a server as a child process, waiting until it is ready, and ending it with all it started.

Knows commands, ports, process groups and how to show the last words of a child. Does not know what kind
of server it is: whether it is ready is asked of a function. Every wait is bounded. No child outlives this
process: it is closed when the interpreter ends, and on Linux the kernel ends it after a `kill -9` too.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

Progress = Callable[[str], None]
"""Takes a line on what is waited for."""

_POLL = 0.05
_TELL = 2.0
"""Seconds between progress lines."""
_SAID = 100
"""Characters of a child's last line in a message."""
COMMAND = "command"
"""Where a target's facts (`machine`) say how to start the same by hand.

For the bundled engine alone: a command of the user's may hold a secret, and a history holds none.
"""
_LISTENING = re.compile(r"listening on (https?://\S+)")


_GUARD = """\
import ctypes, os, signal, sys
parent, report, *command = sys.argv[1:]
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(parent):
    sys.exit("the parent is gone")
os.set_inheritable(int(report), False)
try:
    os.execvp(command[0], command)
except OSError as error:
    os.write(int(report), str(error.errno).encode())
"""
"""Becomes the command, once Linux has promised to end it with its parent (PR_SET_PDEATHSIG, 1).

A program of its own because code between fork and exec is not safe in a process with threads.
"""


def _silent(line: str) -> None:
    """Progress that nobody wants to see."""


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
                self._process = _spawn(self.command, out, err)
        except OSError as error:
            self._folder.cleanup()
            raise LaunchError(f"cannot start `{shlex.join(self.command)}`: {error.strerror}") from None
        atexit.register(self.close)

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
        """The last words as the end of a message: the very last in its line, what led to it below."""
        lines = self.last_words().splitlines()
        block = "".join(f"\n  {line}" for line in lines) if len(lines) > 1 else ""
        return f"; {self.last_said() or 'it printed nothing'}{block}"

    def last_said(self) -> str:
        """`it last said: ...`; empty while it has printed nothing."""
        last = self.last_words(1).strip()
        return f"it last said: {textwrap.shorten(last, _SAID, placeholder=' …')}" if last else ""

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
        atexit.unregister(self.close)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return


def _spawn(command: Sequence[str], out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
    """The command in a session of its own, bound to the life of this process where the system can do that."""
    if sys.platform != "linux":
        return _popen(command, out, err)
    answer, report = os.pipe()
    try:
        guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), str(report)]
        process = _popen([*guard, *command], out, err, report)
    finally:
        os.close(report)
        with open(answer, "rb") as reader:
            # The pipe closes unwritten when the guard becomes the command.
            failed = reader.read()
    if failed:
        process.wait()
        raise OSError(int(failed), os.strerror(int(failed)))
    return process


def _popen(command: Sequence[str], out: IO[bytes], err: IO[bytes], *keep: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, pass_fds=keep
    )


def free_port() -> int:
    """A port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def engine_command(arguments: Sequence[str]) -> list[str]:
    """The bundled engine on a port of its own choice; goldens and conformance pin the builtin BLAS."""
    fixed = ["--port", "0", "--test-mode", "--blas", "builtin"]
    return [sys.executable, "-m", "engine", "serve", *fixed, *arguments]


def engine_line(arguments: Sequence[str], port: int = 8000) -> str:
    """What a user types to get such an engine on a port that is known beforehand."""
    return shlex.join(["python", "-m", "engine", "serve", "--port", str(port), *arguments])


def launch_engine(
    arguments: Sequence[str], timeout: float, progress: Progress = _silent
) -> tuple[Child, str]:
    """Starts the bundled engine; returns the child and its URL once it says that it listens."""
    child = Child(engine_command(arguments))
    wait_until(child, lambda: _LISTENING.search(child.output()) is not None, timeout, progress)
    found = _LISTENING.search(child.output())
    assert found is not None
    return child, found.group(1)


def launch_command(
    command: str,
    extra: Sequence[str],
    ready: Callable[[str], bool],
    timeout: float,
    progress: Progress = _silent,
) -> tuple[Child, str]:
    """Starts `command` with `{port}` filled in and `extra` appended; returns the child and its URL.

    `ready(url)` is asked until it says yes. LaunchError when the command lacks `{port}`, cannot be
    split, ends early or is not ready within `timeout` seconds.
    """
    words, port = command_words(command), str(free_port())
    child = Child([*(word.replace("{port}", port) for word in words), *extra])
    url = f"http://127.0.0.1:{port}"
    wait_until(child, lambda: ready(url), timeout, progress)
    return child, url


def command_words(command: str) -> list[str]:
    """The command's words, `{port}` still among them. LaunchError when it cannot be a command to serve."""
    if "{port}" not in command:
        raise LaunchError(f"the command must say where the port goes: `{command} --port {{port}}`")
    try:
        return shlex.split(command)
    except ValueError as error:
        raise LaunchError(f"cannot read the command `{command}`: {error}") from None


def wait_until(child: Child, ready: Callable[[], bool], timeout: float, progress: Progress = _silent) -> None:
    """Returns when `ready()`; else ends the child and raises LaunchError with its last words.

    Meanwhile `progress` is told what is waited for, how long it took so far and what the child last said.
    """
    start = told = time.monotonic()
    try:
        while not ready():
            now = time.monotonic()
            if child.exit_code() is not None:
                raise LaunchError(_failed(child, f"ended before it was ready ({child.how_it_ended()})"))
            if now > start + timeout:
                raise LaunchError(_failed(child, f"was not ready within {timeout:g} s"))
            if now > told + _TELL:
                told = now
                progress(_waiting(child, now - start))
            time.sleep(_POLL)
    except BaseException:
        # An interrupt too: nobody else knows of this child yet.
        child.close()
        raise


def _waiting(child: Child, seconds: float) -> str:
    parts = [f"waiting for `{shlex.join(child.command)}` ... {seconds:.0f} s", child.last_said()]
    return "; ".join(part for part in parts if part)


def _failed(child: Child, what: str) -> str:
    return f"`{shlex.join(child.command)}` {what}{child.quoted()}"

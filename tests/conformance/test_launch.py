"""Child processes: up when they say so, gone with all they started, their last words in every complaint."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from conformance import launch
from conformance.launch import Child, LaunchError, engine_command, free_port, launch_command, launch_engine

TIMEOUT = 20.0


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def line(script: str) -> str:
    return shlex.join([*python(script), "{port}"])


def until(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + TIMEOUT
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


def test_a_child_ends_with_all_that_it_started() -> None:
    start = "import subprocess, time; p = subprocess.Popen(['sleep', '60'])"
    child = Child(python(f"{start}; print(p.pid, flush=True); time.sleep(60)"))
    assert until(lambda: child.output().strip() != "")
    grandchild = int(child.output())
    assert psutil.pid_exists(grandchild)
    child.close()
    assert child.exit_code() == -signal.SIGTERM
    assert until(lambda: not psutil.pid_exists(grandchild) or _dead(grandchild))


def _dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def test_a_child_that_will_not_end_is_made_to() -> None:
    child = Child(
        python(
            "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
        )
    )
    assert until(lambda: "up" in child.output())
    child.close(grace=0.2)
    assert child.exit_code() == -signal.SIGKILL


def test_closing_twice_is_harmless() -> None:
    child = Child(python("pass"))
    assert child.ended_within(TIMEOUT)
    child.close()
    child.close()
    assert child.exit_code() is not None


@pytest.mark.parametrize(
    ("script", "ended"),
    [("raise SystemExit(3)", "exit code 3"), ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL")],
)
def test_how_a_child_ended_is_told_in_words(script: str, ended: str) -> None:
    child = Child(python(script))
    assert until(lambda: child.exit_code() is not None)
    assert child.how_it_ended() == ended
    child.close()


def test_a_running_child_says_so() -> None:
    child = Child(python("import time; time.sleep(60)"))
    assert child.how_it_ended() == "still running"
    assert not child.ended_within(0.0)
    child.close()


def test_a_program_that_does_not_exist_is_a_clear_error() -> None:
    with pytest.raises(LaunchError, match=r"cannot start `/no/such/program`: No such file"):
        Child(["/no/such/program"])


def test_a_server_that_dies_at_once_is_quoted() -> None:
    script = "import sys; sys.stderr.write('first\\nout of memory\\n'); sys.exit(4)"
    with pytest.raises(
        LaunchError,
        match=r"ready \(exit code 4\); it last said: out of memory\n  first\n  out of memory$",
    ):
        launch_command(line(script), (), lambda url: False, TIMEOUT)


def test_a_server_that_says_nothing_is_said_to() -> None:
    with pytest.raises(LaunchError, match=r"exit code 0\); it printed nothing$"):
        launch_command(line("pass"), (), lambda url: False, TIMEOUT)


def test_a_server_that_is_never_ready_is_given_up() -> None:
    with pytest.raises(LaunchError, match=r"was not ready within 0.1 s"):
        launch_command(line("import time; time.sleep(60)"), (), lambda url: False, 0.1)


def test_a_last_line_without_end_is_cut() -> None:
    script = "import sys; sys.exit('word ' * 1000)"
    with pytest.raises(LaunchError, match=r"it last said: (word )+…$") as caught:
        launch_command(line(script), (), lambda url: False, TIMEOUT)
    assert len(str(caught.value)) < 400


def test_waiting_tells_for_what_and_what_it_last_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_TELL", 0.0)
    said: list[str] = []
    script = "import time; print('loading weights', flush=True); time.sleep(60)"
    child, _ = launch_command(
        line(script), (), lambda url: any("it last said" in text for text in said), TIMEOUT, said.append
    )
    command = shlex.join(child.command)
    child.close()
    assert said[0].startswith(f"waiting for `{command}` ... 0 s")
    assert said[-1].endswith(" s; it last said: loading weights")


def test_an_interrupt_while_waiting_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    child = Child(python("import time; time.sleep(60)"))
    with pytest.raises(KeyboardInterrupt):
        launch.wait_until(child, interrupted, TIMEOUT)
    assert child.exit_code() is not None


PARENT = """
import sys, time
from conformance.launch import Child
child = Child([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
"""


def started_by(script: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    """A process that runs the script, and the child that it says it has."""
    parent = subprocess.Popen(python(script), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, psutil.Process(int(parent.stdout.readline()))


def test_a_child_does_not_outlive_an_interpreter_that_forgot_it() -> None:
    parent, child = started_by(PARENT + "time.sleep(0.5)")
    with parent:
        assert parent.wait(TIMEOUT) == 0
    assert until(lambda: _dead(child.pid))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_child_does_not_outlive_a_parent_that_was_killed() -> None:
    parent, child = started_by(PARENT + "time.sleep(60)")
    with parent:
        assert child.is_running()
        parent.kill()
    assert until(lambda: _dead(child.pid))


def test_a_child_is_the_command_itself_and_nothing_around_it() -> None:
    child = Child(["sleep", "60"])
    assert until(lambda: psutil.Process(child.pid).cmdline() == ["sleep", "60"])
    assert psutil.Process(child.pid).children() == []
    child.close()


def test_a_file_that_cannot_be_run_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "server").write_text("")
    with pytest.raises(LaunchError, match=r"cannot start `.*/server`: Permission denied"):
        Child([str(tmp_path / "server")])


def test_the_line_that_starts_the_same_engine_by_hand() -> None:
    assert launch.engine_line(["--fault", "a b"]) == "python -m engine serve --port 8000 --fault 'a b'"


def test_the_port_and_the_extra_flags_reach_the_command() -> None:
    asked: list[str] = []

    def ready(url: str) -> bool:
        asked.append(url)
        return len(asked) > 2

    script = "import sys, time; print(sys.argv[1:], flush=True); time.sleep(60)"
    command = shlex.join([*python(script), "--at={port}"])
    child, url = launch_command(command, ["--more", "1"], ready, TIMEOUT)
    port = url.rsplit(":", 1)[1]
    assert until(lambda: child.output().strip() == f"['--at={port}', '--more', '1']")
    assert asked == [url] * 3
    child.close()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("serve --model m", r"must say where the port goes: `serve --model m --port \{port\}`"),
        ("serve 'unclosed {port}", r"cannot read the command .*: No closing quotation"),
    ],
)
def test_a_command_that_cannot_be_run_is_explained(command: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        launch_command(command, (), lambda url: True, TIMEOUT)


def test_the_engine_is_ready_when_it_says_where_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys, time; print('warming up\\nlistening on http://127.0.0.1:7', flush=True); time.sleep(60)"
    )
    monkeypatch.setattr(launch, "engine_command", lambda arguments: [*python(script), *arguments])
    child, url = launch_engine(["--blocks", "9"], TIMEOUT)
    assert url == "http://127.0.0.1:7"
    assert child.command[-2:] == ("--blocks", "9")
    child.close()


def test_the_engine_runs_on_a_free_port_with_the_builtin_blas() -> None:
    command = engine_command(["--blocks", "9"])
    assert command[1:4] == ["-m", "engine", "serve"]
    assert command[4:] == ["--port", "0", "--test-mode", "--blas", "builtin", "--blocks", "9"]


def test_a_free_port_is_free() -> None:
    assert 1024 <= free_port() <= 65535

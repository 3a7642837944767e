"""The command line: help that teaches, one line for a mistake, a clean start and end."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from engine import blas, cli, worker
from engine.config import EngineConfig
from engine.model import ModelError

PATIENCE = 60.0
SERVE = ("serve", "--port", "0", "--blas", "builtin")
"""Here MLX is imported already: too late for another BLAS."""


@pytest.fixture(autouse=True)
def _keep_signals() -> Iterator[None]:
    """`serve` installs signal handlers; the test run keeps its own."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def options(*argv: str) -> EngineConfig:
    return cli.config_of(cli.build_parser().parse_args(["serve", *argv]))


def complaint(capsys: pytest.CaptureFixture[str], code: int, *argv: str) -> str:
    """The one line that a mistaken command leaves on stderr."""
    try:
        returned = cli.main(argv)
    except SystemExit as left:
        returned = int(left.code or 0)
    said = capsys.readouterr()
    assert (returned, said.out, said.err.count("\n")) == (code, "", 1)
    return said.err


def help_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as left:
        cli.main([*argv, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


# ---- options


def test_options_default_to_the_config() -> None:
    assert options() == EngineConfig()


def test_every_option_reaches_the_config() -> None:
    given = options(
        *("--host", "127.0.0.2", "--port", "0", "--model", "digest", "--model-seed", "5"),
        *("--storage", "dense", "--block-size", "16", "--blocks", "99", "--grid", "64", "--chunk", "128"),
        *("--max-batch", "4", "--max-queue", "7", "--no-sharing", "--fault", "f", "--test-mode"),
        *("--blas", "builtin", "--determinism", "fast", "--reserve", "prompt", "--drain", "3"),
        *("--hash-bytes", "2"),
    )
    assert given == EngineConfig(
        host="127.0.0.2",
        port=0,
        model="digest",
        model_seed=5,
        storage="dense",
        block_size=16,
        blocks=99,
        grid=64,
        chunk=128,
        max_batch=4,
        max_queue=7,
        share=False,
        fault="f",
        test_mode=True,
        blas="builtin",
        determinism="fast",
        reserve="prompt",
        drain=3,
        hash_bytes=2,
    )


def test_help_shows_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    said = help_of(capsys)
    assert "python -m engine serve" in said
    assert "python -m engine model export DIR" in said


def test_serve_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    said = help_of(capsys, "serve")
    for name in vars(EngineConfig()):
        option = "--no-sharing" if name == "share" else f"--{name.replace('_', '-')}"
        assert option in said
    assert "/v1/completions" in said


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"])
    assert (left.value.code, capsys.readouterr().out) == (0, "conformance-engine 0.1.0\n")


# ---- mistakes


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("serve", "--port", "x"), "--port"),
        (("serve", "--port", "70000"), "--port"),
        (("serve", "--blocks", "0"), "--blocks"),
        (("serve", "--chunk", "33"), "--chunk"),
        (("serve", "--storage", "heap"), "--storage"),
        (("serve", "--determinism", "some"), "--determinism"),
        (("serve", "--bogus"), "--bogus"),
        (("serve", "--block", "5"), "--block"),
        ((*SERVE, "--fault", "nope"), "--fault"),
        ((*SERVE, "--model", "tiny", "--model-seed", "-1"), "--model-seed"),
        ((), "COMMAND"),
        (("model",), "COMMAND"),
        (("model", "export"), "--gguf: give a folder DIR, a --gguf FILE, or both"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], named: str
) -> None:
    assert named in complaint(capsys, 2, *argv)


def test_an_unknown_fault_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert "consume_on_adopt" in complaint(capsys, 2, *SERVE, "--fault", "nope")


def test_a_blas_that_does_not_load(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "mlx.core")
    said = complaint(capsys, 2, *SERVE, "--blas", "/nowhere/blas.so")
    assert "--blas: '/nowhere/blas.so' does not load" in said


def test_a_model_that_does_not_load(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: worker.Worker) -> None:
        raise ModelError("cannot load\n it")

    monkeypatch.setattr(worker.Worker, "start", refuse)
    assert "--model: cannot load it" in complaint(capsys, 2, *SERVE)


def test_a_port_in_use_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = complaint(capsys, 1, "serve", "--port", port)
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in said


def test_a_host_that_is_not_ours_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot listen on 192.0.2.1 port 0" in complaint(
        capsys, 1, "serve", "--host", "192.0.2.1", "--port", "0"
    )


# ---- commands


def test_faults_are_listed_with_what_they_break(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["faults"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^consume_on_adopt\n    breaks adopt/1", said, re.MULTILINE)
    assert re.search(
        r"^shape_dependent_rows\n    breaks .*\(needs --blas with openblas\)$", said, re.MULTILINE
    )


def doctored(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(["doctor", "--blas", "builtin", "--model", "digest", *argv]) == 0
    return capsys.readouterr().out


def test_the_doctor_prints_what_rows_depend_on_the_grade_and_the_cost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = doctored(capsys, "--grid", "64")
    assert said.startswith("model digest, dtype float32, grid 64, device ")
    for line in ("do rows depend on", "batch size ", "serve --determinism", "bits ", "decode, 8 rows"):
        assert re.search(f"^{line}", said, re.MULTILINE)


def test_the_doctor_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(doctored(capsys, "--json"))
    assert [mode["promise"]["grade"] for mode in report["modes"]] == ["bits"]
    assert report["facts"]["blas"] == "builtin"


def test_the_doctor_names_a_model_that_it_cannot_load(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def examine(name: str, **_: Any) -> None:
        raise ModelError(f"cannot load {name}")

    monkeypatch.setattr("engine.doctor.examine", examine)
    said = complaint(capsys, 2, "doctor", "--blas", "builtin", "--model", "/nowhere")
    assert "--model: cannot load /nowhere" in said


@pytest.mark.parametrize(
    ("argv", "named"), [(("--grid", "0"), "--grid"), (("--bogus",), "--bogus"), (("--blas", ""), "--blas")]
)
def test_a_mistake_in_what_the_doctor_is_asked_is_named(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], named: str
) -> None:
    assert named in complaint(capsys, 2, "doctor", *argv)


def test_export_writes_the_model_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[tuple[Path, str, int | None]] = []

    def export(directory: Path, model: str = "tiny", seed: int | None = None) -> None:
        written.append((directory, model, seed))

    monkeypatch.setitem(sys.modules, "engine.export", SimpleNamespace(export=export))
    assert cli.main(["model", "export", str(tmp_path), "--model", "tiny-fat", "--model-seed", "3"]) == 0
    assert written == [(tmp_path, "tiny-fat", 3)]
    assert capsys.readouterr().out == f"wrote tiny-fat to {tmp_path}\n"


def test_export_writes_a_gguf_file_as_well_or_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[tuple[str, Path]] = []
    for module, name in (("engine.export", "export"), ("engine.exportgguf", "export_gguf")):
        fake = {name: lambda place, *_, as_=name, **__: written.append((as_, place))}
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**fake))
    folder, file = tmp_path / "tiny", tmp_path / "tiny.gguf"
    assert cli.main(["model", "export", str(folder), "--gguf", str(file)]) == 0
    assert cli.main(["model", "export", "--gguf", str(file)]) == 0
    assert written == [("export", folder), ("export_gguf", file), ("export_gguf", file)]
    assert f"wrote tiny to {file}\n" in capsys.readouterr().out


def test_what_writes_gguf_may_be_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    said = complaint(capsys, 2, "model", "export", "--gguf", str(tmp_path / "x.gguf"))
    assert "--gguf: is written by the package gguf, which is not installed here: pip install gguf" in said


def test_an_export_that_cannot_be_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(directory: Path, model: str = "tiny", seed: int | None = None) -> None:
        raise ModelError("no weights")

    monkeypatch.setitem(sys.modules, "engine.export", SimpleNamespace(export=export))
    assert "--model: no weights" in complaint(capsys, 2, "model", "export", "x", "--model", "digest")


def test_serve_applies_the_blas_before_it_builds_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def note(name: str) -> Any:
        return lambda *_, **__: order.append(name)

    def apply(choice: str) -> str:
        order.append("blas")
        return choice

    monkeypatch.setattr(blas, "apply", apply)
    monkeypatch.setattr(worker.Worker, "start", note("start"))
    monkeypatch.setattr(worker.Worker, "stop", note("stop"))
    monkeypatch.setattr("engine.serving.run", note("run"))
    assert cli.main([*SERVE]) == 0
    assert order == ["blas", "start", "run", "stop"]


def test_serve_reports_the_library_that_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(blas, "apply", lambda choice: f"found for {choice}")
    monkeypatch.setattr(worker.Worker, "start", lambda self: seen.append(self.config.blas))
    monkeypatch.setattr(worker.Worker, "stop", lambda self: None)
    monkeypatch.setattr("engine.serving.run", lambda *_, **__: None)
    assert cli.main(["serve", "--port", "0"]) == 0
    assert seen == ["found for auto"]


def test_the_engine_stops_when_serving_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("broken")

    monkeypatch.setattr(worker.Worker, "start", lambda self: None)
    monkeypatch.setattr(worker.Worker, "stop", lambda self: stopped.append(True))
    monkeypatch.setattr("engine.serving.run", broken)
    assert cli.main([*SERVE]) == 1
    assert stopped == [True]


def test_a_signal_leaves_with_0_and_stops_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []
    monkeypatch.setattr(worker.Worker, "start", lambda self: None)
    monkeypatch.setattr(worker.Worker, "stop", lambda self: stopped.append(True))
    monkeypatch.setattr("engine.serving.run", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as left:
        cli.main([*SERVE])
    assert (left.value.code, stopped) == (0, [True])


def test_the_package_runs_as_a_module(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["engine", "faults"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(Path(cli.__file__).with_name("__main__.py")), run_name="__main__")
    assert left.value.code == 0
    assert "consume_on_adopt" in capsys.readouterr().out


@contextmanager
def serving(*argv: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A real engine in a process of its own, and its URL."""
    command = [sys.executable, "-m", "engine", "serve", "--port", "0", *argv]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", line)
            assert found is not None, line
            yield process, found[1]
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_and_a_signal_ends_it_cleanly(number: signal.Signals) -> None:
    with serving() as (process, url):
        assert requests.get(url + "/health", timeout=PATIENCE).json() == {"status": "ok"}
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_answers_leave_in_small_parts_at_once(host: str) -> None:
    """What asyncio decides on a connection to our socket: with TCP_NODELAY no token waits for an ACK."""

    async def nodelay(listener: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        seen: asyncio.Future[int] = loop.create_future()

        async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            seen.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(met, sock=listener):
            with await asyncio.to_thread(socket.create_connection, listener.getsockname()[:2]):
                return await asyncio.wait_for(seen, PATIENCE)

    try:
        listener = cli.bind(EngineConfig(host=host, port=0))
    except OSError:
        pytest.skip(f"nobody can listen on {host} here")
    with listener:
        assert asyncio.run(nodelay(listener)) != 0


@contextmanager
def streaming(url: str, max_tokens: int) -> Iterator[Iterator[bytes]]:
    """A reply of known length whose first token has come; yields its other lines."""
    body = {"prompt": "hello", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    with requests.post(url + "/v1/completions", json=body, stream=True, timeout=PATIENCE) as response:
        lines = (line for line in response.iter_lines() if line)
        assert next(lines).startswith(b"data: ")
        yield lines


def refused_while_draining(url: str) -> requests.Response:
    """What a new request is answered, once the server says that it is about to go."""
    until = time.monotonic() + PATIENCE
    while requests.get(url + "/health", timeout=PATIENCE).status_code == 200:
        assert time.monotonic() < until, "a server that was told to go goes on serving"
        time.sleep(0.02)
    return requests.post(url + "/v1/completions", json={"prompt": "x"}, timeout=PATIENCE)


def test_a_first_signal_lets_what_runs_end_and_takes_nothing_new() -> None:
    with serving("--model", "digest", "--test-mode") as (process, url):
        requests.post(url + "/v1/test/hold", json={"phase": "decode"}, timeout=PATIENCE).raise_for_status()
        with streaming(url, 20) as lines:
            process.send_signal(signal.SIGTERM)
            refusal = refused_while_draining(url)
            assert (refusal.status_code, refusal.headers["Retry-After"]) == (503, "1")
            assert "draining" in refusal.json()["error"]["message"]
            requests.post(url + "/v1/test/hold", json={}, timeout=PATIENCE).raise_for_status()
            rest = list(lines)
        out, err = process.communicate(timeout=PATIENCE)
    assert (len(rest), rest[-1]) == (21, b"data: [DONE]")
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_what_is_in_flight_with_an_error(second: signal.Signals) -> None:
    with serving("--model", "digest", "--test-mode", "--drain", "600") as (process, url):
        requests.post(url + "/v1/test/hold", json={"phase": "decode"}, timeout=PATIENCE).raise_for_status()
        with streaming(url, 20) as lines:
            process.send_signal(signal.SIGTERM)
            refused_while_draining(url)
            process.send_signal(second)
            last = list(lines)[-1]
        out, err = process.communicate(timeout=PATIENCE)
    assert b"shutting down" in last
    assert (process.returncode, out, err) == (0, "", "")


def test_draining_is_bounded() -> None:
    with serving("--model", "digest", "--test-mode", "--drain", "1") as (process, url):
        requests.post(url + "/v1/test/hold", json={"phase": "decode"}, timeout=PATIENCE).raise_for_status()
        with streaming(url, 20) as lines:
            process.send_signal(signal.SIGTERM)
            last = list(lines)[-1]
        out, err = process.communicate(timeout=PATIENCE)
    assert b"shutting down" in last
    assert (process.returncode, out, err) == (0, "", "")

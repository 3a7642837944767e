"""The command line: `python -m engine serve | doctor | model export | faults`.

Knows options, exit codes and the order of start-up: the BLAS library first, MLX after it. Does not know
routes or the engine. A user's mistake is one line on stderr that names the option; exit 2 for a bad value, 1
for a port or a folder that cannot be had.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import engine
from engine import blas
from engine.config import DETERMINISMS, RESERVES, STORAGES, ConfigError, EngineConfig

if TYPE_CHECKING:
    from engine.build import Parts
    from engine.faults import Fault
    from engine.worker import Worker

LOAD_PATIENCE = 10.0
"""Seconds that a model which is being loaded has to come to its end when a signal says so."""

ABOUT = """\
A compact paged MLX engine: the reference that the prefix-cache conformance suite is proven on.

  python -m engine serve                    serve the built-in model on http://127.0.0.1:8000
  python -m engine serve --port 0           ... on a free port, printed once it answers
  python -m engine serve --no-sharing       ... without adopting, to compare against
  python -m engine doctor                   measure on this machine what outputs may depend on
  python -m engine faults                   list the faults that `serve --fault NAME` can build in
  python -m engine model export DIR         write the built-in model as a folder other servers load
  python -m engine model export --gguf FILE    ... as a file that llama-server loads
"""

SERVE_ABOUT = """\
Serve a model over an OpenAI-compatible HTTP API. Prints `listening on http://HOST:PORT` once it answers.

  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
       -d '{"prompt": "once upon a time", "max_tokens": 8}'
  curl http://127.0.0.1:8000/v1/cache/stats

The cached part of a prompt comes back as usage.prompt_tokens_details.cached_tokens.
"""


DOCTOR_ABOUT = """\
Measure, for this model on this machine, whether a token's keys, values and logits depend on the batch it is
in or on the way its prompt was cut; say which grade `serve` will promise (bits, tokens or decided) and what
bits cost. Nothing is changed by it: cached counts stay multiples of the larger of --grid and --block-size.
"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and that takes options by their full name only."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except ConfigError as error:
        return _complain(parser.prog, error, 2)
    except OSError as error:
        return _complain(parser.prog, error, 1)


def _complain(program: str, error: Exception, code: int) -> int:
    """One line, whatever the library that raised the error put into it."""
    print(f"{program}: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m engine", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"conformance-engine {engine.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_doctor(commands)
    _add_model(commands)
    faults = commands.add_parser("faults", help="list the faults that can be built in")
    faults.add_argument("--json", action="store_true", help="as JSON, one object for each fault")
    faults.set_defaults(run=_faults)
    return parser


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        description=SERVE_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.set_defaults(run=_serve)
    _add_model_options(serve)
    cache = serve.add_argument_group("cache")
    cache.add_argument(
        "--storage",
        choices=STORAGES,
        default="paged",
        help="paged: blocks that any number of requests share; dense: whole sequences, taken and given back",
    )
    _add_count(cache, "--block-size", "tokens of one block: the unit of memory and of sharing")
    _add_count(cache, "--blocks", "the pool's budget in blocks")
    cache.add_argument(
        "--reserve",
        choices=RESERVES,
        default=EngineConfig.reserve,
        help="what admission promises: all a request may ever write, or its prompt and a block, so that more"
        " run at once and the youngest is preempted when blocks run out (default: %(default)s)",
    )
    cache.add_argument(
        "--no-sharing", dest="share", action="store_false", help="never adopt: every prompt is computed cold"
    )
    compute = serve.add_argument_group("compute")
    _add_grid(compute)
    _add_count(compute, "--chunk", "tokens prefilled in one step, a multiple of the grid")
    _add_count(compute, "--max-batch", "requests decoded together")
    _add_count(compute, "--max-queue", "requests that may wait; more are refused with 503")
    compute.add_argument(
        "--determinism",
        choices=DETERMINISMS,
        default=EngineConfig.determinism,
        help="bits: a reply is the same to the bit warm or cold, in any company; fast: whatever shape of"
        " product comes, see `python -m engine doctor` (default: %(default)s)",
    )
    _add_blas(compute)
    _add_network(serve.add_argument_group("network"))
    test = serve.add_argument_group("test material")
    test.add_argument(
        "--fault",
        metavar="NAME",
        help="build in a fault, or several: A+B; `python -m engine faults` lists them",
    )
    _add_count(test, "--hash-bytes", "bytes of a block's hash: fewer let hashes collide, 0 lets all")
    test.add_argument("--test-mode", action="store_true", help="add the routes under /v1/test")


def _add_grid(group: Any) -> None:
    _add_count(
        group, "--grid", "tokens of the absolute prefill tile; sharing counts in the larger of grid and block"
    )


def _add_blas(group: Any) -> None:
    group.add_argument(
        "--blas",
        default=EngineConfig.blas,
        metavar="auto|builtin|PATH",
        help="BLAS on the CPU: OpenBLAS where installed, MLX's own, or a library (default: %(default)s)",
    )


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="measure what outputs depend on here, and what bits cost",
        description=DOCTOR_ABOUT,
    )
    doctor.set_defaults(run=_doctor)
    _add_model_options(doctor)
    compute = doctor.add_argument_group("compute")
    _add_grid(compute)
    _add_blas(compute)
    doctor.add_argument("--json", action="store_true", help="the same as JSON")


def _add_network(group: Any) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    _add_count(group, "--port", "port to listen on, 0 for a free one")
    _add_count(group, "--drain", "seconds that SIGTERM leaves to running requests; a second one ends them")
    group.add_argument("--verbose", action="store_true", help="log every HTTP request")


def _add_count(group: Any, option: str, help: str) -> None:
    default = getattr(EngineConfig, option[2:].replace("-", "_"))
    group.add_argument(option, type=int, default=default, metavar="N", help=f"{help} (default: {default})")


def _add_model_options(parser: Any) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        default="tiny",
        help="tiny, tiny-fat, digest, a .gguf file, or a folder or repository that mlx-lm loads"
        " (default: %(default)s)",
    )
    group.add_argument("--model-seed", type=int, metavar="N", help="seed of a built-in model's weights")


def _add_model(commands: Any) -> None:
    model = commands.add_parser("model", help="the built-in models")
    actions = model.add_subparsers(title="commands", required=True, metavar="COMMAND")
    export = actions.add_parser("export", help="write tiny, or a .gguf file, for other servers")
    export.add_argument(
        "directory",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="folder to write, as mlx_lm.server, vLLM and others load it; made where missing",
    )
    export.add_argument(
        "--gguf", type=Path, metavar="FILE", help="file to write for llama-server (needs the package gguf)"
    )
    _add_model_options(export)
    export.set_defaults(run=_export)


# ---- commands


def config_of(arguments: argparse.Namespace) -> EngineConfig:
    """The engine's settings among the parsed options. Raises ConfigError."""
    names = {field.name for field in fields(EngineConfig)}
    return EngineConfig(**{name: value for name, value in vars(arguments).items() if name in names})


def _serve(arguments: argparse.Namespace) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    config = config_of(arguments)
    with bind(config) as listener:
        config = replace(config, blas=blas.apply(config.blas))
        return _serve_on(listener, config, arguments.verbose)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def bind(config: EngineConfig) -> socket.socket:
    """A socket bound to the wanted address, not yet listening. Raises OSError that says what is taken."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # With its protocol named: only on such connections asyncio sends small parts at once (TCP_NODELAY). On
    # others a second answer over a kept connection, and tokens that come fast, wait for the reader's ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        place = f"{config.host} port {config.port}"
        raise OSError(f"cannot listen on {place}: {error.strerror}; choose another --port, or 0") from None
    return listener


def _serve_on(listener: socket.socket, config: EngineConfig, verbose: bool) -> int:
    from engine.testmode import worker_for  # brings in MLX, so only now

    parts = _parts(config.fault)
    worker = worker_for(config, parts)
    _start(worker)
    try:
        from engine.server import create_app
        from engine.serving import run

        app = create_app(worker, config, parts.reply, parts.exchange)
        run(app, listener, worker, drain=config.drain, verbose=verbose)
    finally:
        worker.stop()
    return 0


def _parts(fault: str | None) -> Parts:
    from engine.faults import parts_for

    try:
        return parts_for(fault)
    except KeyError as error:
        raise ConfigError("fault", str(error.args[0])) from None


def _start(worker: Worker) -> None:
    try:
        with _model_named():
            worker.start()
    except SystemExit:
        worker.stop(LOAD_PATIENCE)
        if worker.alive:  # an interpreter that goes down beside a thread in MLX aborts, with a core
            os._exit(0)
        raise


def _doctor(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    loaded = blas.apply(config.blas)
    from engine.doctor import as_json, as_text, examine

    with _model_named():
        report = examine(config.model, seed=config.model_seed, grid=config.grid, blas=loaded)
    print(as_json(report) if arguments.json else as_text(report))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    places = {"folder": arguments.directory, "gguf": arguments.gguf}
    if not any(places.values()):
        raise ConfigError("gguf", "give a folder DIR, a --gguf FILE, or both")
    for form, place in places.items():
        if place:
            with _model_named():
                _EXPORTS[form](place, arguments.model, seed=arguments.model_seed)
            print(f"wrote {arguments.model} to {place}")
    return 0


def _to_folder(place: Path, model: str, seed: int | None) -> None:
    from engine.export import export
    from engine.unpack import unpack

    if model.endswith(".gguf"):
        unpack(model, place)
    else:
        export(place, model, seed=seed)


def _to_gguf(place: Path, model: str, seed: int | None) -> None:
    from engine.exportgguf import export_gguf

    try:
        export_gguf(place, model, seed=seed)
    except ModuleNotFoundError as error:
        raise ConfigError("gguf", str(error)) from None


_EXPORTS = {"folder": _to_folder, "gguf": _to_gguf}


@contextmanager
def _model_named() -> Iterator[None]:
    """A model that cannot be had is the fault of --model."""
    from engine.model import ModelError

    try:
        yield
    except ModelError as error:
        raise ConfigError("model", str(error)) from None


def _faults(arguments: argparse.Namespace) -> int:
    from engine.faults import known

    if arguments.json:
        print(json.dumps([_as_json(fault) for fault in known()], indent=1))
        return 0
    for fault in known():
        needs = f" (needs --blas with {fault.needs})" if fault.needs else ""
        print(f"{fault.name}\n    breaks {', '.join(fault.breaks)}{needs}")
        print(textwrap.indent(textwrap.fill(fault.symptom, 76), "    "))
    return 0


def _as_json(fault: Fault) -> dict[str, object]:
    """A fault's own account, with what this machine lacks to show it."""
    lacks = blas.OPENBLAS if fault.needs == "openblas" and not blas.available() else ""
    return {
        "name": fault.name,
        "bug_class": fault.bug_class,
        "symptom": fault.symptom,
        "breaks": list(fault.breaks),
        "needs": fault.needs,
        "lacks": lacks,
    }

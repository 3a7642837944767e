"""The pytest plugin: options, the lines that frame a run, and the hooks that hold it together.

Knows pytest. Does not know how specs are collected (`collect.py`), run (`session.py`) or judged. It is loaded
wherever the package is installed: the rest is imported only when a run has to do with it, and a run that has
not sees nothing of it.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

if TYPE_CHECKING:
    from conformance.plan import Scale
    from conformance.session import Options, Session
    from conformance.tally import Tally
    from conformance.target import TargetOptions

_HERE = Path(__file__).parent
_LOG_WIDTH = 120
_SESSION: pytest.StashKey[Session] = pytest.StashKey()
_OPTIONS: pytest.StashKey[Options] = pytest.StashKey()

_VALUES = {
    "endpoint": ("URL", "test the OpenAI-compatible server at URL"),
    "serve": ("CMD", 'start a server with CMD, which holds {port}: --serve "mlx_lm.server --port {port}"'),
    "replay": ("FILE", "judge a history again, without a server"),
    "engine-args": ("STR", "more flags for the bundled engine"),
    "fault": ("NAME", "start the bundled engine with this fault"),
    "faults": ("NAME", "run faults, `all` or one by name, against the specs that must catch them"),
    "history": ("FILE", "write the history there (default: .conformance/history-<UTC time>.jsonl)"),
    "golden": ("NAME", "compare with, or update, the golden outputs golden/NAME of a target of yours"),
    "request-timeout": ("S", "seconds that one request may take (default 300)"),
    "allow": ("LIST", "what an endpoint, which others may use, must bear: disconnect, reset"),
    "min-judged": ("LIST", "requirements that must have been judged (default adopt/1,out/1,count/1)"),
}
_FLAGS = {
    "should": "a failed SHOULD fails the item on any target, not only on the bundled engine",
    "allow-inconclusive": "skip what is inconclusive instead of failing it",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "prefix-cache conformance (each also as CONFORMANCE_<NAME>)")
    for name, (metavar, text) in _VALUES.items():
        group.addoption(f"--{name}", dest=_dest(name), metavar=metavar, default=None, help=text)
    for name, text in _FLAGS.items():
        group.addoption(f"--{name}", dest=_dest(name), action="store_true", default=None, help=text)
    group.addoption(
        "--scale",
        dest=_dest("scale"),
        choices=("full", "ci"),
        default=None,
        help="shared prefix of about 3,700 tokens, or 570 and short waits (default full; ci with -m quick)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: part of the quick set of conformance specs")
    _refuse_nonsense(config)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reporter(config), "conformance-reporter")
    if config.getoption("numprocesses", None) and config.getoption("dist", None) == "load":
        # Items of one workload belong on one worker, else each would perform it again.
        config.option.dist = "loadgroup"
    if _option(config, "replay"):
        _use(config)  # a file that is no history is refused before anything is collected


def _refuse_nonsense(config: pytest.Config) -> None:
    """Raise UsageError for options that exclude each other or mean nothing."""
    targets = _targets(config)
    if len(targets) > 1:
        raise pytest.UsageError(f"{' and '.join(targets)}: one run has one target")
    if targets and (extra := [name for name in ("fault", "engine-args") if _option(config, name)]):
        raise pytest.UsageError(f"--{extra[0]} is for the bundled engine, not for {targets[0]}")
    if targets and _is_updating(config) and not _option(config, "golden"):
        raise pytest.UsageError(
            f"--snapshot-update with {targets[0]} needs --golden NAME: whose outputs are they?"
        )
    if _option(config, "faults"):
        _refuse_beside_faults(config, targets)
    for read in (_scale, _seconds, _engine_args, _allowed):
        read(config)


def _refuse_beside_faults(config: pytest.Config, targets: list[str]) -> None:
    from conformance.faults import choose

    if targets or _option(config, "fault"):
        other = targets[0] if targets else "--fault"
        raise pytest.UsageError(f"--faults runs on the bundled engine, with and without each: drop {other}")
    choose(_option(config, "faults"))


def _is_updating(config: pytest.Config) -> bool:
    updating = ("update_snapshots", "update_new_snapshots_only")
    return any(config.getoption(name, False) for name in updating)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix not in (".yaml", ".yml"):
        return None
    from conformance.collect import SpecFile, is_spec

    if not is_spec(file_path, parent.session.isinitpath(file_path)):
        return None
    _use(parent.config)
    file: SpecFile = SpecFile.from_parent(parent, path=file_path)
    return file


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if module_path != _HERE / "test_specs.py":
        return None
    from conformance.collect import SpecModule

    _use(parent.config)
    module: SpecModule = SpecModule.from_parent(parent, path=module_path)
    return module


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.stash.get(_SESSION, None) is not None:
        from conformance.collect import each_once

        items[:] = each_once(items)


def pytest_report_header(config: pytest.Config) -> str | None:
    if not _is_asked_for(config):
        return None
    spread = bool(config.getoption("numprocesses", None))
    return f"conformance: {_describe(_options(config), spread)}"


def pytest_report_collectionfinish(items: list[pytest.Item]) -> str | None:
    specs = {item.path for item in items if hasattr(item, "loaded")}
    return f"conformance: {len(specs)} spec files" if specs else None


class Reporter:
    """What is known of a run where its reports arrive: the one process, or the xdist controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tally: Tally | None = None
        self._missing: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if any(name in ("requirement", "fault") for name, _ in report.user_properties):
            from conformance.tally import Tally

            self._tally = self._tally or Tally()
            self._tally.add(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run that judged less than it should have is not green."""
        asked = _option(self._config, "min-judged")
        if self._tally is None and not (asked and not self._config.option.collectonly):
            return
        from conformance.tally import Tally

        wanted = [word.strip() for word in asked.split(",")] if asked else None
        self._missing = (self._tally or Tally()).missing(wanted, _is_whole(self._config))
        if self._missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._tally is not None:
            terminalreporter.section("conformance")
            for line in self._tally.lines(_width()):
                terminalreporter.write_line(line)
        if self._missing:
            missing = ", ".join(self._missing)
            terminalreporter.write_line(f"not judged, so this run is not green: {missing}", red=True)


def _width() -> int:
    """Columns of the terminal; a log file has room enough."""
    is_terminal = sys.__stdout__ is not None and sys.__stdout__.isatty()
    return shutil.get_terminal_size().columns if is_terminal else _LOG_WIDTH


class Announcer:
    """Lines in the middle of a run, past pytest's capture; silent on an xdist worker and in a pipe."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def tell(self, line: str) -> None:
        """A line that stays."""
        self._write(f"\n{line}\n")

    def progress(self, line: str) -> None:
        """A line that the next one replaces."""
        if sys.__stderr__ is not None and sys.__stderr__.isatty():
            self._write(f"\r\x1b[K{line}")

    def _write(self, text: str) -> None:
        capture = self._config.pluginmanager.getplugin("capturemanager")
        terminal = self._config.pluginmanager.getplugin("terminalreporter")
        if terminal is None or hasattr(self._config, "workerinput"):
            return
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            terminal.write(text, flush=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.close()


def _use(config: pytest.Config) -> None:
    """Make the run's session, once there is something to run."""
    if config.stash.get(_SESSION, None) is None:
        from conformance.collect import SESSION

        config.stash[_SESSION] = config.stash[SESSION] = _session(config)
        if _option(config, "faults"):
            from conformance.faults import RUN, FaultRun, choose

            config.stash[RUN] = FaultRun(
                choose(_option(config, "faults")), lambda *how: _fault_session(config, *how)
            )


def _fault_session(config: pytest.Config, fault: str | None, flags: tuple[str, ...], label: str) -> Session:
    """A run of its own on a bundled engine with a fault, beside the run's history."""
    from conformance.backend import Backend
    from conformance.session import Session

    target, options = _target(config), _options(config)
    target = replace(target, fault=fault, engine_args=(*target.engine_args, *flags))
    history = options.history.with_stem(f"{options.history.stem}-{label}")
    backend = Backend(target, Announcer(config).progress)
    return Session(replace(options, history=history), backend)


def _session(config: pytest.Config) -> Session:
    from conformance.backend import Backend
    from conformance.record import HistoryError
    from conformance.session import Session

    options, announcer = _options(config), Announcer(config)
    session = Session(options, Backend(_target(config), announcer.progress), announcer.tell)
    try:
        assert session.recordings is not None
    except HistoryError as error:
        raise pytest.UsageError(str(error)) from None
    return session


def _options(config: pytest.Config) -> Options:
    """What the run was asked for; made once, since it names the history by the time."""
    if config.stash.get(_OPTIONS, None) is None:
        config.stash[_OPTIONS] = _read_options(config)
    return config.stash[_OPTIONS]


def _read_options(config: pytest.Config) -> Options:
    from conformance.record import default_path
    from conformance.session import Options

    worker = getattr(config, "workerinput", {}).get("workerid")
    history, replay = _option(config, "history"), _option(config, "replay")
    path = Path(history) if history else default_path(Path(), worker)
    return Options(
        how=_how(config),
        scale=_scale(config),
        history=path.with_stem(f"{path.stem}-{worker}") if history and worker else path,
        replay=(Path(replay),) if replay else (),
        golden=_option(config, "golden"),
        allow=_allowed(config),
        should=bool(_option(config, "should")),
        allow_inconclusive=bool(_option(config, "allow-inconclusive")),
        **({"url": _option(config, "endpoint")} if _how(config) == "endpoint" else {}),
    )


def _target(config: pytest.Config) -> TargetOptions:
    from conformance.target import TargetOptions

    how = _how(config)
    return TargetOptions(
        how="engine" if how == "replay" else how,
        url=_option(config, "endpoint") or "",
        command=_option(config, "serve") or "",
        engine_args=_engine_args(config),
        fault=_option(config, "fault"),
        allow=_allowed(config),
        timeout=_seconds(config),
    )


def _how(config: pytest.Config) -> Literal["engine", "serve", "endpoint", "replay"]:
    targets = _targets(config)
    return cast(Any, targets[0].removeprefix("--")) if targets else "engine"


def _targets(config: pytest.Config) -> list[str]:
    """Options that name a target; those of the command line before those of the environment."""
    names = ("endpoint", "serve", "replay")
    given = [f"--{name}" for name in names if config.getoption(_dest(name))]
    return given or [f"--{name}" for name in names if _option(config, name)]


def _scale(config: pytest.Config) -> Scale:
    chosen = _option(config, "scale") or ("ci" if config.option.markexpr == "quick" else "full")
    if chosen not in ("full", "ci"):
        raise pytest.UsageError(f"CONFORMANCE_SCALE={chosen}: full or ci")
    return cast("Scale", chosen)


def _allowed(config: pytest.Config) -> frozenset[str]:
    words = {word.strip() for word in (_option(config, "allow") or "").split(",") if word.strip()}
    unknown = sorted(words - {"disconnect", "reset"})
    if unknown:
        raise pytest.UsageError(f"--allow {unknown[0]}: disconnect or reset, with a comma between")
    return frozenset(words)


def _seconds(config: pytest.Config) -> float:
    given = _option(config, "request-timeout") or "300"
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise pytest.UsageError(f"--request-timeout {given}: a number of seconds above 0")
    return seconds


def _engine_args(config: pytest.Config) -> tuple[str, ...]:
    given = _option(config, "engine-args") or ""
    try:
        return tuple(shlex.split(given))
    except ValueError as error:
        raise pytest.UsageError(f"--engine-args {given!r}: {error}") from None


def _option(config: pytest.Config, name: str) -> Any:
    """The option's value, or that of its environment variable."""
    return config.getoption(_dest(name)) or os.environ.get(_dest(name).upper()) or None


def _dest(name: str) -> str:
    return "conformance_" + name.replace("-", "_")


def _describe(options: Options, spread: bool) -> str:
    how = {
        "engine": "the bundled engine",
        "replay": f"replay of {options.replay[0]}" if options.replay else "",
    }
    target = how.get(options.how) or (options.url if options.how == "endpoint" else "a server started here")
    where = f"a file a worker in {options.history.parent}" if spread else options.history
    history = "" if options.how == "replay" else f" · history {where}"
    return f"{target} · scale {options.scale}{history}"


def _is_asked_for(config: pytest.Config) -> bool:
    """Whether the command line points at specs; nothing is collected yet when the header is printed."""
    return any(_points_at_specs(config, arg) for arg in config.args)


def _points_at_specs(config: pytest.Config, arg: str) -> bool:
    path = (config.invocation_params.dir / arg.partition("::")[0]).resolve()
    return (
        path.suffix in (".yaml", ".yml") or path in (_HERE, _HERE / "test_specs.py") or _is_spec_folder(path)
    )


def _is_spec_folder(path: Path) -> bool:
    return any((folder / "spec.schema.json").exists() for folder in (path, *path.parents))


def _is_whole(config: pytest.Config) -> bool:
    """Whether this run was meant to see the whole suite, or the whole quick set."""
    of_suite = any(Path(arg).resolve() in (_HERE, _HERE / "test_specs.py") for arg in config.args)
    part = config.option.keyword or config.option.markexpr not in ("", "quick") or _option(config, "faults")
    return of_suite and not part

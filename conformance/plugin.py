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
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

from conformance.report.progress import Announcer

if TYPE_CHECKING:
    from conformance.plan import Scale
    from conformance.session import Options, Session
    from conformance.tally import Tally
    from conformance.target import TargetOptions

_HERE = Path(__file__).parent
_LOG_WIDTH = 120
_SESSION: pytest.StashKey[Session] = pytest.StashKey()
_OPTIONS: pytest.StashKey[Options] = pytest.StashKey()
_ANNOUNCER: pytest.StashKey[Announcer] = pytest.StashKey()
_TERMINABLE: pytest.StashKey[bool] = pytest.StashKey()

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
_EXPECTED = {
    "URL": "a URL",
    "CMD": "a command that holds {port}",
    "FILE": "a file",
    "NAME": "a name",
    "S": "a number of seconds",
    "LIST": "names with a comma between",
}
_MAY_BE_EMPTY = ("engine-args", "allow")
"""No flags and no permissions are what an empty value says; elsewhere it is a variable that nobody set."""
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
    if not hasattr(config, "workerinput"):  # else the controller has done all that
        _refuse_nonsense(config)
        config.pluginmanager.register(Reporter(config), "conformance-reporter")
        if _is_spread(config):
            _end_when_told(config)  # its workers end with it
            # Workers of an interrupted run report no snapshots, which must not look like a defect.
            config.addinivalue_line("filterwarnings", "ignore:syrupy. received:UserWarning")
    if _option(config, "replay"):
        _use(config)  # a file that is no history is refused before anything is collected


def _is_spread(config: pytest.Config) -> bool:
    """Whether specs are run on several xdist workers."""
    return config.getoption("dist", "no") != "no" and _is_asked_for(config)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Items of one workload belong on one worker, else each would perform it again."""
    if not _is_spread(config):
        return None
    from xdist.scheduler.loadgroup import LoadGroupScheduling  # type: ignore[import-untyped]

    class WorkloadScheduling(LoadGroupScheduling):  # type: ignore[misc]
        # By node id: the marks of loadgroup reach a controller only with some versions of pytest and xdist.
        def _split_scope(self, nodeid: str) -> str:
            return workload_of(nodeid, _how(config) == "endpoint") or str(super()._split_scope(nodeid))

    return WorkloadScheduling(config, log)


def workload_of(nodeid: str, is_shared: bool) -> str:
    """What must not run on two workers: file and rung, or everything on one shared server; else nothing."""
    path, _, name = nodeid.partition("::")
    if not path.endswith((".yaml", ".yml")):
        return ""
    rung = "".join(name.partition("@")[0].partition("[")[1:])
    return "endpoint" if is_shared else path + rung


def _end_when_told(config: pytest.Config) -> None:
    """Make SIGTERM and SIGHUP what Ctrl-C is: servers are closed, the history ends in order."""
    if config.stash.get(_TERMINABLE, False) or threading.current_thread() is not threading.main_thread():
        return
    config.stash[_TERMINABLE] = True
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)
            config.add_cleanup(partial(_default, number))


def _default(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # `timeout` and process managers send it twice; the second must not stop the closing.
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.Signals(number).name)


def _refuse_nonsense(config: pytest.Config) -> None:
    """Raise UsageError for options that exclude each other or mean nothing."""
    _refuse_empty(config)
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
    if _is_spread(config) and (dist := config.getoption("dist")) not in ("load", "loadgroup"):
        raise pytest.UsageError(
            f"--dist {dist}: a workload stays on one worker, as with plain -n; leave it out"
        )
    for read in (_scale, _seconds, _engine_args, _allowed):
        read(config)
    for name, check in _CHECKS.items():
        if value := _option(config, name):
            check(value)


def _refuse_empty(config: pytest.Config) -> None:
    """An empty value is a variable that nobody set; to go on without would test the wrong thing."""
    wanted = {name: _EXPECTED.get(metavar, "") for name, (metavar, _) in _VALUES.items()}
    for name, expected in {**wanted, "scale": "full or ci"}.items():
        said = {f"--{name}": config.getoption(_dest(name)), _variable(name): os.environ.get(_variable(name))}
        for where, value in said.items():
            if name not in _MAY_BE_EMPTY and value is not None and not value.strip():
                raise pytest.UsageError(f"{where}: empty; expected {expected}")


def _check_endpoint(url: str) -> None:
    from conformance.wire import parse_address

    try:
        parse_address(url)
    except ValueError as error:
        raise pytest.UsageError(f"--endpoint: {error}") from None


def _check_serve(command: str) -> None:
    from conformance.launch import LaunchError, command_words

    try:
        command_words(command)
    except LaunchError as error:
        raise pytest.UsageError(f"--serve: {error}") from None


def _check_fault(name: str) -> None:
    from conformance.faults import known

    if name not in known():
        raise pytest.UsageError(f"--fault {name}: expected one of {', '.join(known())}")


def _check_history(given: str) -> None:
    path = Path(given)
    if path.is_dir():
        raise pytest.UsageError(f"--history {given}: a directory; expected a file to write")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise pytest.UsageError(f"--history {given}: {above} is no directory")


def _check_min_judged(given: str) -> None:
    from conformance.requirements import get

    words = _words(given)
    try:
        for word in words:
            get(word)
    except KeyError as error:
        raise pytest.UsageError(f"--min-judged: {error.args[0]}") from None
    if not words:
        raise pytest.UsageError(f"--min-judged {given!r}: expected ids such as adopt/1,out/1")


_CHECKS: dict[str, Callable[[str], None]] = {
    "endpoint": _check_endpoint,
    "serve": _check_serve,
    "fault": _check_fault,
    "history": _check_history,
    "min-judged": _check_min_judged,
}
"""What can be found wrong with a value before anything is collected."""


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


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    if not _is_asked_for(config):
        return None
    spread = bool(config.getoption("numprocesses", None))
    lines = [_describe(_options(config), spread), *map(_stranger, _strangers(os.environ))]
    return [f"conformance: {line}" for line in lines]


def _strangers(names: Iterable[str]) -> list[str]:
    """Environment variables that look like an option and are none."""
    return sorted(name for name in names if name.startswith("CONFORMANCE_") and name not in _variables())


def _stranger(name: str) -> str:
    near = get_close_matches(name, _variables(), n=1)
    return f"{name} is no option and is ignored" + (f"; did you mean {near[0]}?" if near else "")


def _variables() -> list[str]:
    return [*map(_variable, (*_VALUES, *_FLAGS, "scale")), "CONFORMANCE_API_KEY"]


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

        wanted = _words(asked) if asked else None
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


def _announcer(config: pytest.Config) -> Announcer:
    """One for the run, so that all its lines keep the distance together."""
    return config.stash.setdefault(_ANNOUNCER, Announcer(config))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    # On a worker the controller may not wait any longer than this.
    _close(session.config)


def pytest_unconfigure(config: pytest.Config) -> None:
    _close(config)


def _close(config: pytest.Config) -> None:
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.close()


def _use(config: pytest.Config) -> None:
    """Make the run's session, once there is something to run."""
    if config.stash.get(_SESSION, None) is None:
        from conformance.collect import SESSION

        _end_when_told(config)
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
    backend = Backend(target, _announcer(config).progress)
    return Session(replace(options, history=history), backend)


def _session(config: pytest.Config) -> Session:
    from conformance.backend import Backend
    from conformance.record import HistoryError
    from conformance.session import Session

    options, announcer = _options(config), _announcer(config)
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
        progress=_announcer(config).progress,
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
    words = frozenset(_words(_option(config, "allow") or ""))
    unknown = sorted(words - {"disconnect", "reset"})
    if unknown:
        raise pytest.UsageError(f"--allow {unknown[0]}: disconnect or reset, with a comma between")
    return words


def _words(given: str) -> list[str]:
    return [word.strip() for word in given.split(",") if word.strip()]


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
    return config.getoption(_dest(name)) or os.environ.get(_variable(name)) or None


def _variable(name: str) -> str:
    return _dest(name).upper()


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

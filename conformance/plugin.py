"""The pytest plugin: the lines that frame a run, and the hooks that hold it together.

Knows pytest. Does not know what an option may say (`options.py`), how specs are collected (`collect.py`),
run (`session.py`) or judged. It is loaded wherever the package is installed: the rest is imported only when a
run has to do with it, and a run that has not sees nothing of it.
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from conformance.options import (
    add_options,
    describe,
    how_of,
    is_asked_for,
    is_spread,
    option,
    options_of,
    refuse_nonsense,
    stranger_lines,
    target_of,
    words_of,
)
from conformance.report.progress import Announcer

if TYPE_CHECKING:
    from conformance.session import Session
    from conformance.tally import Tally

_HERE = Path(__file__).parent
_LOG_WIDTH = 120
_SESSION: pytest.StashKey[Session] = pytest.StashKey()
_ANNOUNCER: pytest.StashKey[Announcer] = pytest.StashKey()
_TERMINABLE: pytest.StashKey[bool] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: part of the quick set of conformance specs")
    if not hasattr(config, "workerinput"):  # else the controller has done all that
        refuse_nonsense(config)
        config.pluginmanager.register(Reporter(config), "conformance-reporter")
        if is_spread(config):
            _end_when_told(config)  # its workers end with it
            # Workers of an interrupted run report no snapshots, which must not look like a defect.
            config.addinivalue_line("filterwarnings", "ignore:syrupy. received:UserWarning")
    if option(config, "replay"):
        _use(config)  # a file that is no history is refused before anything is collected


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Items of one workload belong on one worker, else each would perform it again."""
    if not is_spread(config):
        return None
    from xdist.scheduler.loadgroup import LoadGroupScheduling  # type: ignore[import-untyped]

    class WorkloadScheduling(LoadGroupScheduling):  # type: ignore[misc]
        # By node id: the marks of loadgroup reach a controller only with some versions of pytest and xdist.
        def _split_scope(self, nodeid: str) -> str:
            return workload_of(nodeid, how_of(config) == "endpoint") or str(super()._split_scope(nodeid))

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
    if not is_asked_for(config):
        return None
    spread = bool(config.getoption("numprocesses", None))
    lines = [describe(options_of(config), spread), *stranger_lines()]
    return [f"conformance: {line}" for line in lines]


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
        asked = option(self._config, "min-judged")
        if self._tally is None and not (asked and not self._config.option.collectonly):
            return
        from conformance.tally import Tally

        wanted = words_of(asked) if asked else None
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
        if option(config, "faults"):
            from conformance.faults import RUN, FaultRun, choose

            config.stash[RUN] = FaultRun(
                choose(option(config, "faults")), lambda *how: _fault_session(config, *how)
            )


def _fault_session(config: pytest.Config, fault: str | None, flags: tuple[str, ...], label: str) -> Session:
    """A run of its own on a bundled engine with a fault, beside the run's history."""
    from conformance.backend import Backend
    from conformance.session import Session

    target, options = target_of(config, _announcer(config).progress), options_of(config)
    target = replace(target, fault=fault, engine_args=(*target.engine_args, *flags))
    history = options.history.with_stem(f"{options.history.stem}-{label}")
    return Session(replace(options, history=history), Backend(target))


def _session(config: pytest.Config) -> Session:
    from conformance.backend import Backend
    from conformance.record import HistoryError
    from conformance.session import Session

    options, announcer = options_of(config), _announcer(config)
    session = Session(options, Backend(target_of(config, announcer.progress)), announcer.tell)
    try:
        assert session.recordings is not None
    except HistoryError as error:
        raise pytest.UsageError(str(error)) from None
    return session


def _is_whole(config: pytest.Config) -> bool:
    """Whether this run was meant to see the whole suite, or the whole quick set."""
    of_suite = any(Path(arg).resolve() in (_HERE, _HERE / "test_specs.py") for arg in config.args)
    part = config.option.keyword or config.option.markexpr not in ("", "quick") or option(config, "faults")
    return of_suite and not part

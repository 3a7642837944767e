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
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from conformance import early
from conformance.neighbours import scheduler, spare_hypothesis
from conformance.options import (
    add_options,
    by_fault,
    describe,
    how_of,
    hunting_of,
    is_asked_for,
    is_spread,
    option,
    options_of,
    runs_no_items,
    stranger_lines,
    target_of,
)
from conformance.refusals import refuse_nonsense
from conformance.report.progress import Announcer
from conformance.values import words_of
from conformance.workers import fault_of, keep_to_share

if TYPE_CHECKING:
    from conformance.archive import Archive
    from conformance.known import Known
    from conformance.session import Options, Session
    from conformance.tally import Tally

_HERE = Path(__file__).parent
_LOG_WIDTH = 120
_SESSIONS: pytest.StashKey[dict[str, Session]] = pytest.StashKey()
_ANNOUNCER: pytest.StashKey[Announcer] = pytest.StashKey()
_TERMINABLE: pytest.StashKey[bool] = pytest.StashKey()
_NOTES: pytest.StashKey[list[str]] = pytest.StashKey()
"""What is to be said of the histories of a replay."""


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: part of the quick set of conformance specs")
    if option(config, "insecure"):  # who says so knows
        config.addinivalue_line("filterwarnings", "ignore:Unverified HTTPS request")
    if not hasattr(config, "workerinput"):  # else the controller has done all that
        refuse_nonsense(config)
        watched = early.Early()
        config.pluginmanager.register(watched, "conformance-early")
        config.pluginmanager.register(Reporter(config, watched), "conformance-reporter")
        if is_spread(config):
            _end_when_told(config)  # its workers end with it
            # Workers of an interrupted run report no snapshots, which must not look like a defect.
            config.addinivalue_line("filterwarnings", "ignore:syrupy. received:UserWarning")
    elif how_of(config) == "engine" and is_asked_for(config):
        keep_to_share(config.workerinput["workerid"], config.workerinput["workercount"])
    if option(config, "replay"):
        _use(config)  # a file that is no history is refused before anything is collected


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Items of one workload belong on one worker, else each would perform it again."""
    if not is_spread(config):
        return None
    return scheduler(config, log)


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
    return SpecFile.at(parent, file_path)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if module_path != _HERE / "test_specs.py":
        return None
    from conformance.collect import SpecModule

    _use(parent.config)
    module: SpecModule = SpecModule.from_parent(parent, path=module_path)
    return module


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.stash.get(_SESSIONS, None) is not None:
        from conformance.collect import each_once

        items[:] = each_once(items)
        if by_fault(config):
            items.sort(key=lambda item: fault_of(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and (evidence := getattr(item, "evidence", None)) is not None:
        # An attribute of plain values goes to the xdist controller with the rest of the report.
        vars(report)["conformance"] = evidence
    return report


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    if not is_asked_for(config):
        return None
    spread = bool(config.getoption("numprocesses", None))
    lines = [describe(options_of(config), spread), *config.stash.get(_NOTES, []), *stranger_lines()]
    return [f"conformance: {line}" for line in lines]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With --dry-run cases are rehearsed, with --record-baseline measured, and nothing else happens."""
    config = session.config
    runs = config.stash.get(_SESSIONS, None)
    if runs is None or config.option.collectonly or not runs_no_items(config):
        return None
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    for line in _instead(config, next(iter(runs.values())), session.items):
        if reporter is not None:
            reporter.write_line(line)
    return True


def _instead(config: pytest.Config, run: Session, items: Sequence[pytest.Item]) -> Iterable[str]:
    from conformance.baselining import recorded
    from conformance.dryrun import rehearsed

    name = option(config, "record-baseline")
    return recorded(run, items, name) if name else rehearsed(run, items)


def pytest_report_collectionfinish(items: list[pytest.Item]) -> str | None:
    specs = {item.path for item in items if hasattr(item, "loaded")}
    return f"conformance: {len(specs)} spec files" if specs else None


class Reporter:
    """What is known of a run where its reports arrive: the one process, or the xdist controller."""

    def __init__(self, config: pytest.Config, watched: early.Early) -> None:
        self._config, self._early = config, watched
        self._ended: dict[str, Any] | None = None
        self._tally: Tally | None = None
        self._missing: list[str] = []
        self._written: list[str] = []
        self._has_others = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = any(name in ("requirement", "fault_summary") for name, _ in report.user_properties)
        if told or hasattr(report, "conformance"):
            from conformance.tally import Tally

            self._tally = self._tally or Tally()
            self._tally.add(report)
        elif report.when == "call":
            self._has_others = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run that judged less than it should have is not green."""
        if not self._has_others:
            spare_hypothesis(self._config)
        if runs_no_items(self._config) or session.exitstatus == pytest.ExitCode.USAGE_ERROR:
            return
        self._ended = self._early.ended(session.shouldfail or session.shouldstop)
        self._missing = self._not_judged()
        alive = self._tally.pairs_alive() if self._tally else []
        if (self._missing or alive) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._write_reports(session)

    def _not_judged(self) -> list[str]:
        asked = option(self._config, "min-judged")
        if (self._tally is None or self._tally.hunts) and not asked:
            return []
        from conformance.tally import Tally

        return (self._tally or Tally()).missing(words_of(asked) if asked else None, _is_whole(self._config))

    def _write_reports(self, session: pytest.Session) -> None:
        if wanted := option(self._config, "report-kills"):
            from conformance import kills

            told = (self._tally.kills, self._tally.explored) if self._tally else ([], [])
            self._write(session, Path(wanted), kills.as_json(*told))
        self._write_verdicts(session)

    def _write_verdicts(self, session: pytest.Session) -> None:
        wanted = {name: option(self._config, name) for name in ("report-json", "report-html")}
        if not any(wanted.values()):
            return
        from conformance.report.document import Result, as_html, as_json
        from conformance.tally import Tally

        tally, green = self._tally or Tally(), session.exitstatus == pytest.ExitCode.OK
        result = Result(tally.items, tally.broken, self._missing, green, interrupted=self._ended)
        for name, write in {"report-json": as_json, "report-html": as_html}.items():
            if wanted[name]:
                self._write(session, Path(wanted[name]), write(result))

    def _write(self, session: pytest.Session, path: Path, text: str) -> None:
        try:
            path.write_text(text, encoding="utf-8")
            self._written.append(f"report: {path}")
        except OSError as error:
            # The verdicts stand in the terminal; a report that is missing must still be noticed.
            self._written.append(f"report {path}: cannot be written: {error.strerror}")
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._tally is not None and (self._tally.entries or self._tally.kills or self._tally.hunts):
            terminalreporter.section("conformance")
            for line in self._tally.lines(_width()):
                terminalreporter.write_line(line)
        for line in self._written:
            terminalreporter.write_line(line)
        if self._ended:
            terminalreporter.write_line(early.line(self._ended), red=True)
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
    if option(config, "faults") and config.stash.get(_SESSIONS, None) is not None:
        from conformance.faults import RUN

        if (run := config.stash.get(RUN, None)) is not None:
            run.close()
    for session in config.stash.get(_SESSIONS, {}).values():
        session.close()


def _use(config: pytest.Config) -> None:
    """Make the run's session, once there is something to run."""
    if config.stash.get(_SESSIONS, None) is None:
        from conformance.collect import KNOWN, SESSION, SESSIONS

        _end_when_told(config)
        config.stash[KNOWN] = _known(config)
        config.stash[_SESSIONS] = config.stash[SESSIONS] = _sessions(config)
        config.stash[SESSION] = next(iter(config.stash[_SESSIONS].values()))
        if option(config, "explore"):
            from conformance.exploring import HUNT

            config.stash[HUNT] = hunting_of(config)
        if option(config, "faults"):
            from conformance.faults import RUN, FaultRun, choose

            config.stash[RUN] = FaultRun(
                choose(option(config, "faults")),
                lambda *how: _fault_session(config, *how),
                cross=bool(option(config, "cross")),
                shared=by_fault(config),
            )


def _known(config: pytest.Config) -> Sequence[Known]:
    """Deviations that are expected: of the file that was named, else of all that are shipped."""
    from conformance.known import load, load_all
    from conformance.marks import SpecError

    given = option(config, "expectations")
    try:
        return load(Path(given)) if given else load_all()
    except SpecError as error:
        raise pytest.UsageError(str(error)) from None


def _fault_session(config: pytest.Config, fault: str | None, flags: tuple[str, ...], label: str) -> Session:
    """A run of its own on a bundled engine with a fault, beside the run's history."""
    from conformance.backend import Backend
    from conformance.faults import FAULT_TIMEOUT
    from conformance.session import Session

    target, options = target_of(config, _announcer(config).progress), options_of(config)
    bounded = min(target.timeout, FAULT_TIMEOUT)
    target = replace(target, fault=fault, timeout=bounded, engine_args=(*target.engine_args, *flags))
    history = options.history.with_stem(f"{options.history.stem}-{label}")
    return Session(replace(options, history=history), Backend(target))


def _sessions(config: pytest.Config) -> dict[str, Session]:
    """One run, or one for each target that a replay has histories of, by label."""
    from conformance.archive import Archive, by_target
    from conformance.record import HistoryError

    options = options_of(config)
    try:
        found = by_target(map(Archive, options.replay)) or {"": []}
    except HistoryError as error:
        raise pytest.UsageError(str(error)) from None
    sessions = {label: _session(config, options, archives) for label, archives in found.items()}
    return sessions if len(sessions) > 1 else {"": next(iter(sessions.values()))}


def _session(config: pytest.Config, options: Options, archives: list[Archive]) -> Session:
    from conformance.backend import Backend
    from conformance.session import Session

    announcer = _announcer(config)
    backend = Backend(target_of(config, announcer.progress))
    notes = [note for archive in archives for note in archive.notes]
    config.stash.setdefault(_NOTES, []).extend(notes)
    return Session(
        replace(options, replay=tuple(a.path for a in archives)), backend, announcer.tell, archives
    )


def _is_whole(config: pytest.Config) -> bool:
    """Whether this run was meant to see the whole suite, or the whole quick set."""
    of_suite = any(Path(arg).resolve() in (_HERE, _HERE / "test_specs.py") for arg in config.args)
    part = config.option.keyword or config.option.markexpr not in ("", "quick")
    other = option(config, "faults") or option(config, "explore")
    return of_suite and not part and not other

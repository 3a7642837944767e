"""What can be found wrong with the value of one option before anything is collected.

Knows what a value has to name: an address, a command, a file, a requirement. Does not know which options go
together (`options.py`). What is wrong is a UsageError; whatever a check needs is imported by the check alone,
since this is loaded wherever pytest is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest


def words_of(given: str) -> list[str]:
    """The words of a list with commas between."""
    return [word.strip() for word in given.split(",") if word.strip()]


def _check_endpoint(url: str) -> None:
    from conformance.connecting import parse_address

    try:
        parse_address(url)
    except ValueError as error:
        raise pytest.UsageError(f"--endpoint: {error}") from None


def _check_cacert(given: str) -> None:
    from conformance.access import check_certificates

    try:
        check_certificates(given)
    except ValueError as error:
        raise pytest.UsageError(f"--cacert {error}") from None


def _check_serve(command: str) -> None:
    from conformance.launch import LaunchError, command_words

    try:
        command_words(command)
    except LaunchError as error:
        raise pytest.UsageError(f"--serve: {error}") from None


def _check_expectations(given: str) -> None:
    from conformance.known import load
    from conformance.marks import SpecError

    try:
        load(Path(given))
    except SpecError as error:
        raise pytest.UsageError(f"--expectations: {error}") from None


def _check_fault(name: str) -> None:
    from conformance.faults import choose

    if name == "all" or "," in name:
        raise pytest.UsageError(f"--fault {name}: an engine has one fault; --faults runs each in turn")
    choose(name, "--fault")


def _check_written(name: str, given: str) -> None:
    path = Path(given)
    if path.is_dir():
        raise pytest.UsageError(f"--{name} {given}: a directory; expected a file to write")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise pytest.UsageError(f"--{name} {given}: {above} is no directory")


def _check_pid(given: str) -> None:
    from conformance.footprint import unreadable

    reason = unreadable(int(given)) if given.isdecimal() and int(given) else "expected a process id"
    if reason:
        raise pytest.UsageError(f"--pid {given}: {reason}")


def _check_record_baseline(given: str) -> None:
    from conformance.baseline import FOLDER, BaselineError, place

    try:
        place(FOLDER, given)
    except BaselineError as error:
        raise pytest.UsageError(f"--record-baseline {error}") from None


def _check_specs(given: str) -> None:
    from conformance.load import spec_files

    if not Path(given).is_dir() or not spec_files(Path(given)):
        raise pytest.UsageError(f"--specs {given}: expected a folder with specs (*.yaml)")


def _check_min_judged(given: str) -> None:
    from conformance.requirements import get

    words = words_of(given)
    try:
        for word in words:
            get(word)
    except KeyError as error:
        raise pytest.UsageError(f"--min-judged: {error.args[0]}") from None
    if not words:
        raise pytest.UsageError(f"--min-judged {given!r}: expected ids such as adopt/1,out/1")


CHECKS: dict[str, Callable[[str], None]] = {
    "cacert": _check_cacert,
    "endpoint": _check_endpoint,
    "expectations": _check_expectations,
    "fault": _check_fault,
    "min-judged": _check_min_judged,
    "pid": _check_pid,
    "record-baseline": _check_record_baseline,
    "serve": _check_serve,
    "specs": _check_specs,
    **{
        name: partial(_check_written, name)
        for name in ("history", "report-json", "report-html", "report-kills")
    },
}
"""By the option's name; each raises UsageError or returns."""

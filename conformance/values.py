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


def _check_fault(name: str) -> None:
    from conformance.faults import choose

    if name == "all" or "," in name:
        raise pytest.UsageError(f"--fault {name}: an engine has one fault; --faults runs each in turn")
    choose(name, "--fault")


def _check_golden(given: str) -> None:
    from conformance.golden import check_name, targets
    from conformance.session import GOLDEN

    try:
        check_name(given)
    except ValueError as error:
        there = ", ".join(targets(GOLDEN)) or "none"
        raise pytest.UsageError(f"--golden {given}: {error}. In {GOLDEN.name}/ there is: {there}") from None


def _check_written(name: str, given: str) -> None:
    """What will be written at the end, after minutes, can be: the folder is there, and so are the rights."""
    try:
        if not (wrong := _misplaced(Path(given))):
            _try_to_write(Path(given))
    except OSError as error:
        wrong = f"cannot be written: {error.strerror}"
    if wrong:
        raise pytest.UsageError(f"--{name} {given}: {wrong}")


def _misplaced(path: Path) -> str:
    if path.is_dir():
        return "a directory; expected a file to write"
    if not path.parent.exists():
        return f"there is no directory {path.parent}; make it first"
    return "" if path.parent.is_dir() else f"{path.parent} is no directory"


def _try_to_write(path: Path) -> None:
    """Open it for writing and leave it as it was. Raises OSError; a pipe or a device is not opened."""
    was_there = path.exists()
    if was_there and not path.is_file():
        return
    with path.open("ab"):
        pass
    if not was_there:
        path.unlink()


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
    "fault": _check_fault,
    "golden": _check_golden,
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

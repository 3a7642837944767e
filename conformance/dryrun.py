"""The lines of `--dry-run`: every collected case rehearsed, and the sum.

Knows collected items and the session. Does not know how a case is rehearsed (`rehearse.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from conformance.collect import SpecItem
from conformance.rehearse import MEASURED, Load
from conformance.report.terminal import facts_line
from conformance.session import Session


def rehearsed(run: Session, items: Sequence[pytest.Item]) -> Iterator[str]:
    """Lines for the terminal; ends with exit status 1 when there is no server to ask for its facts."""
    cases = {(item.loaded.spec.id, item.rung): item.loaded for item in items if isinstance(item, SpecItem)}
    total, told, later = Load(), False, 0
    for (_, rung), loaded in cases.items():
        try:
            load, lines = run.rehearse(loaded, rung)
        except run.errors as error:
            pytest.exit(f"no target: {error}", returncode=1)
        if not told and run.facts is not None:
            told = True
            yield f"supposed, not probed: {facts_line(run.facts)}"
        yield from lines
        total, later = total + load, later + any(line.endswith(MEASURED) for line in lines)
    more = f", not counting {later} that need G" if later else ""
    yield f"in all: {total}{more}; nothing was sent"

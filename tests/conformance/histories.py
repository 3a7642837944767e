"""Histories made by the megabyte, for tests of reading them.

Knows how to record workloads of any size. Does not know how they are read.
"""

from __future__ import annotations

from pathlib import Path

from conformance.history import Facts, Span
from conformance.record import Recorder
from tests.conformance import builders
from tests.conformance.builders import ask, reply

REQUESTS = 8


def write_history(
    path: Path, cases: int, prompt: int = 3000, facts: Facts | None = None, area: str = "area"
) -> Path:
    """`cases` workloads `area/c0`, `area/c1`, ... of one burst each, every prompt `prompt` ids of its own."""
    recorder = Recorder(path)
    recorder.header(how="engine", scale="ci")
    recorder.facts("main", facts or builders.facts())
    for case in range(cases):
        recorder.begin(f"{area}/c{case}", None, f"digest{case}")
        for index in range(REQUESTS):
            plan = ask("eight", [case, index, *range(1000, 1000 + prompt)], index)
            recorder.outcome(reply(plan, 1, 2))
        recorder.span(Span(arm="main", step="eight", kind="burst", start=1, end=2))
        # The live view keeps all that it wrote; a generator of large files must not.
        recorder.end()
        recorder.recording.workloads[f"{area}/c{case}", ""].outcomes.clear()
        recorder.recording.prompts.clear()
    recorder.close()
    return path

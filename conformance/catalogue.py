"""The bundled engine's faults, as it lists them itself.

Knows how to ask the engine, in a process of its own: nothing of it is imported here. Does not know specs,
what a fault does (`engine.faults`) or how one is run (`faults.py`).
"""

from __future__ import annotations

import subprocess
import sys

from pydantic import BaseModel, TypeAdapter, ValidationError

AND = "+"
"""Between the faults that one engine has at once."""
_PATIENCE = 60
"""Seconds."""


class EngineError(Exception):
    """The bundled engine does not tell its faults; the message says why."""


class KnownFault(BaseModel):
    """A fault as `python -m engine faults --json` tells it."""

    name: str
    bug_class: str
    symptom: str
    breaks: tuple[str, ...]
    needs: str
    lacks: str
    """What this machine has not got, without which the fault does not show."""

    @property
    def names(self) -> list[str]:
        """The faults that it is made of: itself, or those of a pair."""
        return self.name.split(AND)

    def beside(self, other: KnownFault) -> KnownFault:
        """Both in one engine: caught by whatever catches either."""
        return KnownFault(
            name=self.name + AND + other.name,
            bug_class=self.bug_class + AND + other.bug_class,
            symptom=f"{self.symptom} {other.symptom}",
            breaks=self.breaks + other.breaks,
            needs=self.needs or other.needs,
            lacks=self.lacks or other.lacks,
        )


def listed() -> dict[str, KnownFault]:
    """The faults by name. Raises EngineError."""
    command = [sys.executable, "-m", "engine", "faults", "--json"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"the bundled engine does not start: {error}") from None
    if answer.returncode:
        said = answer.stderr.strip().rpartition("\n")[2] or "it printed nothing"
        raise EngineError(f"the bundled engine does not start: {said}")
    try:
        faults = TypeAdapter(list[KnownFault]).validate_json(answer.stdout)
    except ValidationError:
        raise EngineError(
            "`python -m engine faults --json` lists no faults; is it another `engine`?"
        ) from None
    return {fault.name: fault for fault in faults}

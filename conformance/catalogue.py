"""The bundled engine's faults, as it lists them itself.

Knows how to ask the engine, in a process of its own: nothing of it is imported here. Does not know what a
fault does (`engine.faults`), how one is run (`faults.py`), or which specs claim it.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from pydantic import BaseModel, TypeAdapter

if TYPE_CHECKING:
    from conformance.load import Loaded

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

    def claimed_by(self, loaded: Loaded) -> bool:
        """Whether a spec says that it kills this fault, or one of a pair."""
        return any(name in loaded.spec.kills for name in self.names)

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
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    if answer.returncode:
        raise EngineError(f"the bundled engine does not start: {answer.stderr.strip()}")
    return {fault.name: fault for fault in TypeAdapter(list[KnownFault]).validate_json(answer.stdout)}

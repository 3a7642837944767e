"""How the workload of an example is performed and judged over HTTP, like any spec.

Knows that a workload becomes a file, which the session of a run takes. Does not know the engine.
"""

from __future__ import annotations

from pathlib import Path

from conformance.explore.hunt import Judged
from conformance.explore.script import Json
from conformance.explore.write import text_of
from conformance.load import load
from conformance.session import Session


class Outside:
    """Judges each workload as a spec file of its own in `folder`, by `session`."""

    def __init__(self, session: Session, folder: Path) -> None:
        self._session, self._folder, self._number = session, folder, 0

    def __call__(self, data: Json) -> Judged:
        self._number += 1
        path = self._folder / f"e{self._number}.yaml"
        path.write_text(text_of({**data, "id": f"explored/e{self._number}"}), encoding="utf-8")
        loaded = load(path)
        path.unlink()
        return [(expect, self._session.verdict(loaded, "", expect)) for expect in loaded.spec.expect]

"""YAML cases as pytest items: one per spec, rung and expectation.

Knows pytest's collection tree. Does not know how a workload is run or judged (`session.py`), nor what a spec
may say (`load.py`). Collecting contacts nothing, so `--collect-only` works with the endpoint down. A broken
file is one failing item, `specs/x.yaml::schema`, and the rest of the session goes on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import conformance
from conformance import faults as fault_run
from conformance.catalogue import KnownFault
from conformance.conclude import ItemFailure, conclude, failure_text, properties
from conformance.exploring import HUNT, ExploreItem
from conformance.faults import RUN, FaultItem
from conformance.history import Workload
from conformance.known import Known, find
from conformance.load import Loaded, claim_id, load, spec_files
from conformance.marks import SpecError, display
from conformance.options import paths_of
from conformance.report.footer import replay_line
from conformance.rungs import rungs
from conformance.session import Session
from conformance.spec import Expect
from conformance.verdict import Verdict

PACKAGE = Path(conformance.__file__).parent
SPECS = PACKAGE.parent / "specs"
"""The shipped cases; a clone has them beside the package."""

SESSION: pytest.StashKey[Session] = pytest.StashKey()
"""The run that all items of this pytest process share (`plugin.py` makes it)."""

SESSIONS: pytest.StashKey[dict[str, Session]] = pytest.StashKey()
"""The runs by the label of their target: several where a replay has histories of several targets."""

KNOWN: pytest.StashKey[Sequence[Known]] = pytest.StashKey()
"""Deviations that are expected (`known.py`)."""

SCHEMA_FILE = "spec.schema.json"
_SPEC_LINE = re.compile(r"^spec:", re.MULTILINE)
_SEEN_IDS: pytest.StashKey[dict[str, Path]] = pytest.StashKey()


class SpecModule(pytest.Module):
    """`conformance/test_specs.py`: stands for the shipped specs, so that `pytest conformance/` finds them."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        hunting = self.config.stash.get(HUNT, None)
        if hunting is not None:
            yield from ExploreItem.each(self, hunting)
            return
        own = [path for folder in paths_of(self.config, "specs") for path in spec_files(folder)]
        files = [*spec_files(SPECS), *own]
        if not files:
            # An empty folder must not be a green run.
            yield SchemaItem.from_parent(self, name="schema", text=f"no spec under {SPECS}")
        for path in files:
            yield SpecFile.at(self, path)


class SpecFile(pytest.File):
    """One YAML file."""

    @classmethod
    def at(cls, parent: pytest.Collector, path: Path) -> SpecFile:
        """The file under the id that can be pasted wherever it lies: its path as seen from the root folder.

        pytest's own choice outside of that folder is a bare name, which two files may share.
        """
        whole = os.path.abspath(path)
        seen = Path(os.path.relpath(whole, parent.config.rootpath)).as_posix()
        file: SpecFile = cls.from_parent(parent, path=Path(whole), nodeid=seen)
        return file

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        if not self._matters():
            return
        try:
            loaded = load(self.path, faults=fault_run.known if RUN in self.config.stash else None)
            claim_id(loaded, self.config.stash.setdefault(_SEEN_IDS, {}))
        except SpecError as error:
            yield SchemaItem.from_parent(self, name="schema", text=str(error))
            return
        faults = self._faults(loaded)
        if faults is not None and not faults:
            return
        for label in self.config.stash[SESSIONS]:
            for rung in rungs(loaded.spec):
                for expect in loaded.spec.expect:
                    yield SpecItem.make(self, loaded, rung, expect, label)
        for fault in faults or []:
            yield FaultItem.make(self, loaded, fault)

    def _matters(self) -> bool:
        """Whether this run can have items here, as far as that is known without reading YAML."""
        run = self.config.stash.get(RUN, None)
        if run is None:
            return True
        try:
            return run.may_ask(self.path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return True  # for whoever reads it in earnest to tell

    def _faults(self, loaded: Loaded) -> list[KnownFault] | None:
        """The faults to run this spec against; None in a run without faults."""
        run = self.config.stash.get(RUN, None)
        return run.against(loaded) if run else None


class SchemaItem(pytest.Item):
    """Stands for a file that is no spec, and fails with the reason."""

    def __init__(self, *, text: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text = text

    @property
    def evidence(self) -> dict[str, Any]:
        return {"broken": self.text}

    def runtest(self) -> None:
        raise ItemFailure(self.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, 0, self.name


class SpecItem(pytest.Function):
    """One expectation on one rung, of one target."""

    loaded: Loaded
    rung: str
    expect: Expect
    label: str
    """Of the target, where there are several; else empty."""
    evidence: dict[str, Any] | None = None
    """What was found, once it was judged."""

    @classmethod
    def make(cls, parent: SpecFile, loaded: Loaded, rung: str, expect: Expect, label: str = "") -> SpecItem:
        item: SpecItem = cls.from_parent(
            parent, name=item_name(expect.id, rung, label), callobj=_test_of(expect)
        )
        item.loaded, item.rung, item.expect, item.label = loaded, rung, expect, label
        item.extra_keyword_matches |= {expect.requirement, expect.judge, loaded.spec.id}
        if loaded.spec.quick:
            item.add_marker(pytest.mark.quick)
        return item

    def judge(self, snapshot: Any = None) -> None:
        """Run the workload if nobody did yet, ask the judge, conclude. `snapshot` is for goldens."""
        run = self.config.stash[SESSIONS][self.label]
        spec = self.loaded.spec
        verdict = run.verdict(self.loaded, self.rung, self.expect, snapshot)
        workload, history = run.known(spec, self.rung), run.history_of(spec, self.rung)
        known, expired = self._known(workload)
        verdict = replace(verdict, notes=(*verdict.notes, *([expired] if expired else [])))
        says = known.says if known is not None and verdict.status is known.verdict else ""
        self.user_properties += [
            *properties(spec, verdict, workload, history, says),
            *([("on", self.label)] if self.label else []),
            *([("expired", expired)] if expired else []),
        ]
        self.evidence = self._evidence(verdict) | {"again": replay_line(self._plain_id, history)}
        text = failure_text(spec, verdict, workload, self._plain_id, history, run.options)
        if run.dead and not hasattr(self.config, "workerinput"):
            self.session.shouldfail = f"no target: {run.dead.splitlines()[0]}"
        conclude(verdict, workload, run.options, text, known)

    def _known(self, workload: Workload | None) -> tuple[Known | None, str]:
        """The deviation that is known for this item, or what to tell of one that expired."""
        facts = workload.facts.get("main") if workload else None
        if facts is None:
            return None, ""
        return find(self.config.stash[KNOWN], facts, self.loaded.spec, self.rung, self.expect)

    @property
    def _plain_id(self) -> str:
        """What to type for this item in a run with one target, such as the replay of one history."""
        return f"{display(self.path)}::{item_name(self.expect.id, self.rung, '')}"

    def _evidence(self, verdict: Verdict) -> dict[str, Any]:
        """What a report of this item says beyond its properties; plain values, which survive xdist."""
        spec, expect = self.loaded.spec, self.expect
        return {
            **{"on": self.label, **dict(self.user_properties)},
            "reason": verdict.reason,
            "witness": verdict.witness,
            "title": spec.title,
            "rung": self.rung,
            "expectation": expect.id,
            "judge": expect.judge,
            "file": display(self.path),
            "line": expect.line,
            "expected": verdict.expected,
            "observed": list(verdict.observed),
            "notes": list(verdict.notes),
        }

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, self.expect.line - 1, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ItemFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


def item_name(expectation: str, rung: str, label: str) -> str:
    """`adopters`, `adopters[n=1G]`, `adopters[on=vllm-0.33.0]`, `adopters[n=1G,on=vllm-0.33.0]`."""
    words = [rung, f"on={label}" if label else ""]
    inside = ",".join(word for word in words if word)
    return f"{expectation}[{inside}]" if inside else expectation


def is_spec(path: Path, asked_for: bool) -> bool:
    """Whether a YAML file is a case: named by the user, below a folder with the schema, or saying `spec:`."""
    if path.suffix not in (".yaml", ".yml"):
        return False
    if asked_for or any((folder / SCHEMA_FILE).exists() for folder in path.parents):
        return True
    return bool(_SPEC_LINE.search(path.read_text(encoding="utf-8-sig", errors="replace")))


def each_once(items: list[pytest.Item]) -> list[pytest.Item]:
    """Without the second of two items with one id: `conformance/` and `specs/` may both be asked for."""
    return list({item.nodeid: item for item in reversed(items)}.values())[::-1]


def _test_of(expect: Expect) -> Callable[..., None]:
    """A function for pytest to call; its arguments are the fixtures it needs."""

    def judged(request: pytest.FixtureRequest) -> None:
        request.node.judge()

    def compared(request: pytest.FixtureRequest, snapshot: Any) -> None:
        request.node.judge(snapshot)

    return compared if expect.judge == "golden" else judged

"""YAML cases as pytest items: one per spec, rung and expectation.

Knows pytest's collection tree. Does not know how a workload is run or judged (`session.py`), nor what a spec
may say (`load.py`). Collecting contacts nothing, so `--collect-only` works with the endpoint down. A broken
file is one failing item, `specs/x.yaml::schema`, and the rest of the session goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import conformance
from conformance import faults as fault_run
from conformance.conclude import ItemFailure, conclude, failure_text, properties
from conformance.faults import RUN, FaultItem, KnownFault
from conformance.load import Loaded, claim_id, load, spec_files
from conformance.marks import SpecError
from conformance.rungs import rungs
from conformance.session import Session
from conformance.spec import Expect

PACKAGE = Path(conformance.__file__).parent
SPECS = PACKAGE.parent / "specs"
"""The shipped cases; a clone has them beside the package."""

SESSION: pytest.StashKey[Session] = pytest.StashKey()
"""The run that all items of this pytest process share (`plugin.py` makes it)."""

SCHEMA_FILE = "spec.schema.json"
_SPEC_LINE = re.compile(r"^spec:", re.MULTILINE)
_SEEN_IDS: pytest.StashKey[dict[str, Path]] = pytest.StashKey()


class SpecModule(pytest.Module):
    """`conformance/test_specs.py`: stands for the shipped specs, so that `pytest conformance/` finds them."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        files = spec_files(SPECS)
        if not files:
            # An empty folder must not be a green run.
            yield SchemaItem.from_parent(self, name="schema", text=f"no spec under {SPECS}")
        for path in files:
            yield SpecFile.from_parent(self, path=path)


class SpecFile(pytest.File):
    """One YAML file."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            loaded = load(self.path)
            claim_id(loaded, self.config.stash.setdefault(_SEEN_IDS, {}))
        except SpecError as error:
            yield SchemaItem.from_parent(self, name="schema", text=str(error))
            return
        if unknown := self._unknown_faults(loaded):
            yield SchemaItem.from_parent(self, name="schema", text=str(unknown))
            return
        faults = self._faults(loaded)
        if faults is not None and not faults:
            return
        for rung in rungs(loaded.spec):
            for expect in loaded.spec.expect:
                yield SpecItem.make(self, loaded, rung, expect)
        for fault in faults or []:
            yield FaultItem.make(self, loaded, fault)

    def _unknown_faults(self, loaded: Loaded) -> SpecError | None:
        """Claims to kill what is no fault; only a run with faults has the engine there to ask."""
        if self.config.stash.get(RUN, None) is None:
            return None
        known = fault_run.known()
        problems = [
            loaded.document.problem(("kills", i), f"there is no fault {name!r}", ", ".join(known))
            for i, name in enumerate(loaded.spec.kills)
            if name not in known
        ]
        return loaded.document.error(problems) if problems else None

    def _faults(self, loaded: Loaded) -> list[KnownFault] | None:
        """The faults to run this spec against; None in a run without faults."""
        run = self.config.stash.get(RUN, None)
        return run.against(loaded) if run else None


class SchemaItem(pytest.Item):
    """Stands for a file that is no spec, and fails with the reason."""

    def __init__(self, *, text: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text = text

    def runtest(self) -> None:
        raise ItemFailure(self.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, 0, self.name


class SpecItem(pytest.Function):
    """One expectation on one rung."""

    loaded: Loaded
    rung: str
    expect: Expect

    @classmethod
    def make(cls, parent: SpecFile, loaded: Loaded, rung: str, expect: Expect) -> SpecItem:
        name = f"{expect.id}[{rung}]" if rung else expect.id
        item: SpecItem = cls.from_parent(parent, name=name, callobj=_test_of(expect))
        item.loaded, item.rung, item.expect = loaded, rung, expect
        item.extra_keyword_matches |= {expect.requirement, expect.judge, loaded.spec.id}
        if loaded.spec.quick:
            item.add_marker(pytest.mark.quick)
        return item

    def judge(self, snapshot: Any = None) -> None:
        """Run the workload if nobody did yet, ask the judge, conclude. `snapshot` is for goldens."""
        run = self.config.stash[SESSION]
        spec = self.loaded.spec
        verdict = run.verdict(self.loaded, self.rung, self.expect, snapshot)
        workload, history = run.known(spec, self.rung), run.history_of(spec, self.rung)
        self.user_properties += properties(spec, verdict, workload, history)
        text = failure_text(spec, verdict, workload, self.nodeid, history, run.options.url)
        if run.dead and not hasattr(self.config, "workerinput"):
            self.session.shouldfail = f"no target: {run.dead.splitlines()[0]}"
        conclude(verdict, workload, run.options, text)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, self.expect.line - 1, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ItemFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


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

"""Golden outputs: reviewed replies under golden/, compared through syrupy.

Knows the layout golden/<target>/<area>/<case>[.<rung>].<scale>.json, what a golden file holds, and when two
of them are equal. Does not know how a reply came about or which runs compare goldens (`session.py`). Ids and
text must be equal; top-2 gaps are rounded and may differ by platform noise.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from syrupy.assertion import SnapshotAssertion
from syrupy.data import SnapshotCollections
from syrupy.extensions.json import JSONSnapshotExtension

from conformance.history import Facts, Outcome, Workload
from conformance.review import differences
from conformance.verdict import Status, Verdict

SCALES = ("full", "ci")
BASELINES = "baselines"
"""Footprint baselines live beside the goldens and belong to no case."""

ROW = 16
"""Ids a line: a change shows where it began, and a file stays readable."""

GAP_NOISE = 0.02
"""Difference of top-2 logprob gaps that platforms may have; gaps are stored with two decimals."""

_LEGAL = re.compile(r"[a-z0-9.-]+")
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
_SIGNS = {"+": ".p.", "=": ".", "/": ".per."}


def location(
    root: Path, target: str, spec_id: str, rung: str | None, scale: str, name: str = "golden"
) -> Path:
    """Where the golden of one expectation lives; `name` is its id when a case has several.

    Raises ValueError for a target whose name is none (`check_name`).
    """
    check_name(target)
    return root / target / f"{case_stem(spec_id, rung, name)}.{scale}.json"


def check_name(target: str) -> None:
    """Raises ValueError for what cannot name the outputs of a target: it is a folder beside the baselines."""
    if target == BASELINES:
        raise ValueError(f"the golden name {target!r} is that of the recorded footprints; choose another")
    if not _NAME.fullmatch(target):
        raise ValueError(
            f"the golden name {target!r} may hold only a-z, 0-9, dot and dash, a letter or digit first, "
            "as in my-server-1.2; it is no path"
        )


def targets(root: Path) -> list[str]:
    """The targets whose outputs were reviewed."""
    return sorted(path.name for path in root.glob("*/") if path.name != BASELINES)


def name_of(model: str) -> str:
    """The golden name of a model of the bundled engine: `mlx-community/Qwen3-0.6B` is another than `tiny`."""
    return re.sub(r"[^a-z0-9.-]+", "-", model.lower()).strip("-.") or "model"


REVIEWED_GRANULE = 32
"""Tokens that sharing counts in, in the engine whose replies were reviewed."""


def name_of_engine(facts: Facts) -> str:
    """The golden name of the bundled engine as it was started: its model's, and what else decides its counts.

    A BLAS with which decode does not give the bits of prefill: only prompts are adopted. With the builtin one
    that would be a defect, so there the goldens stay those of the model.
    """
    other_blas = facts.blas not in ("", "builtin") and facts.generated_reusable is False
    granule = f"granule-{facts.granule}"
    apart = {
        "one-shot": facts.sharing == "one_shot",
        "prompts-only": other_blas,
        granule: facts.granule not in (None, REVIEWED_GRANULE),
    }
    return ".".join([name_of(facts.model), *(word for word, holds in apart.items() if holds)])


def case_stem(spec_id: str, rung: str | None, name: str = "golden") -> str:
    """`area/case[.rung][.name]`: what a golden file's path must begin with, below its target."""
    words = [spec_id, *(_slug(word) for word in (rung or "", "" if name == "golden" else name) if word)]
    return ".".join(words)


def _slug(word: str) -> str:
    """A rung in the legal alphabet; different rungs stay different (1G-1 and 1G+1)."""
    return "".join(_SIGNS.get(c, c if _LEGAL.fullmatch(c) else f".x{ord(c):x}.") for c in word.lower())


def data(workload: Workload, step: str) -> dict[str, Any]:
    """What is reviewed of a step: per request the prompt's digest, reply, rounded gaps and cached tokens."""
    return {outcome.id: _entry(outcome) for outcome in workload.of(step)}


def _entry(outcome: Outcome) -> dict[str, Any]:
    return {
        "prompt": _digest(outcome),
        "cached": outcome.cached,
        "finish": outcome.finish_reason,
        "ids": _rows(outcome.token_ids or []),
        "text": outcome.text,
        "gaps": _rows([f"{gap:.2f}" for gap in outcome.gaps or []]),
    }


def _digest(outcome: Outcome) -> str:
    plan = outcome.plan
    said = [plan.prompt_ids, plan.prompt_text, *([plan.messages] if plan.messages else [])]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _rows(values: Sequence[object]) -> list[str]:
    return [" ".join(map(str, values[i : i + ROW])) for i in range(0, len(values), ROW)]


class GoldenExtension(JSONSnapshotExtension):
    """One golden file; `path` is set by `extension`. Its location follows the case, not the test module."""

    path: ClassVar[Path]

    @classmethod
    def get_location(cls, *, test_location: Any, index: Any) -> str:
        return str(cls.path)

    @classmethod
    def matches_test_location(cls, *, test_location: Any, snapshot_location: str) -> bool:
        return snapshot_location == str(cls.path)

    def discover_snapshots(
        self, *, test_location: Any, ignore_extensions: list[str] | None = None
    ) -> SnapshotCollections:
        # syrupy deletes what it discovers and no test of this run used: goldens of other scales, targets and
        # cases. So nothing is discovered; `orphans` finds what is left over.
        return SnapshotCollections()

    def matches(self, *, serialized_data: Any, snapshot_data: Any) -> bool:
        return equal(json.loads(serialized_data), _parsed(snapshot_data))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def equal(new: Any, old: Any) -> bool:
    """Whether two golden files say the same: all but the gaps exactly, gaps up to platform noise."""
    if not isinstance(old, dict) or old.keys() != new.keys():
        return False
    return all(isinstance(old[key], dict) and _equal_entry(new[key], old[key]) for key in new)


def _equal_entry(new: dict[str, Any], old: dict[str, Any]) -> bool:
    rest = [{k: v for k, v in entry.items() if k != "gaps"} for entry in (new, old)]
    return rest[0] == rest[1] and _near(_numbers(new), _numbers(old))


def _numbers(entry: dict[str, Any]) -> list[float]:
    try:
        return [float(word) for row in entry.get("gaps", []) for word in row.split()]
    except (AttributeError, TypeError, ValueError):
        return []


def _near(a: Sequence[float], b: Sequence[float]) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= GAP_NOISE for x, y in zip(a, b, strict=True))


def extension(path: Path) -> type[GoldenExtension]:
    """A syrupy extension that reads and writes exactly this file."""
    return type("Golden", (GoldenExtension,), {"path": path})


def compare(
    snapshot: SnapshotAssertion, path: Path, workload: Workload, step: str, requirement: str
) -> Verdict:
    """Compare a step's replies with the golden file, or write it when syrupy was told to update.

    Without a file the verdict is not-run, unless syrupy is writing: a scale that was never reviewed proves
    nothing.
    """
    writing = snapshot.update_snapshots or snapshot.update_new_snapshots_only
    if not path.exists() and not writing:
        missing = "/".join(path.parts[-3:])
        return Verdict(Status.NOT_RUN, requirement, reason=f"no {missing}; --snapshot-update writes it")
    assertion = snapshot.use_extension(extension(path))
    expected, found = f"replies of {step} equal {path}", data(workload, step)
    old = _parsed(path.read_text(encoding="utf-8", errors="replace")) if path.exists() else None
    if assertion == found:
        return Verdict(Status.PASS, requirement, expected)
    # syrupy colours its diff for a terminal; a verdict is plain text.
    diff = [Text.from_ansi(line).plain.rstrip() for line in assertion.get_assert_diff()]
    changes = differences(found, old)
    observed = (*(f"{id_}: {said}" for id_, said in changes), *diff)
    named = next((id_ for id_, _ in changes if id_ in found), None)
    return Verdict(Status.FAIL, requirement, expected, observed, _changed(path, changes), request=named)


def _changed(path: Path, changes: Sequence[tuple[str, str]]) -> str:
    first = f"{': '.join(changes[0])}. " if changes else ""
    return (
        f"{first}The replies are not those that were reviewed in {path}; if the change is meant, "
        f"--snapshot-update writes the new ones for review"
    )


def orphans(root: Path, live: Collection[str]) -> list[Path]:
    """Files and empty folders under golden/ that belong to no live case.

    `live` holds the `case_stem` of every golden expectation there is. Baselines and hidden files are not
    looked at.
    """
    return sorted(path for path in _candidates(root) if not _belongs(path, root, live))


def _candidates(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") for part in parts)
        if not hidden and parts[0] != BASELINES and (path.is_file() or not any(path.iterdir())):
            yield path


def _belongs(path: Path, root: Path, live: Collection[str]) -> bool:
    below = "/".join(path.relative_to(root).parts[1:])
    return path.is_file() and any(below == f"{stem}.{scale}.json" for stem in live for scale in SCALES)

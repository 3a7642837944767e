"""Every file under golden/ belongs to a live case, and every case that compares goldens has its files."""

from __future__ import annotations

import json

from conformance.collect import SPECS
from conformance.golden import case_stem, orphans
from conformance.load import load, spec_files
from conformance.plan import SCALES
from conformance.rungs import rungs
from conformance.session import GOLDEN

SHIPPED = ("tiny", "tiny.prompts-only")


def live_stems() -> set[str]:
    specs = [load(path).spec for path in spec_files(SPECS)]
    return {
        case_stem(spec.id, rung, expect.id)
        for spec in specs
        for expect in spec.expect
        if expect.judge == "golden"
        for rung in rungs(spec)
    }


def test_no_golden_is_left_over() -> None:
    assert orphans(GOLDEN, live_stems()) == []


def test_a_left_over_golden_would_be_seen() -> None:
    left = [
        GOLDEN / name / "adopt" / f"warm-burst.{scale}.json" for name in SHIPPED for scale in ("ci", "full")
    ]
    assert orphans(GOLDEN, live_stems() - {"adopt/warm-burst"}) == left


def test_every_case_that_compares_goldens_has_them_at_each_scale() -> None:
    wanted = {
        GOLDEN / name / f"{stem}.{scale}.json"
        for name in SHIPPED
        for stem in live_stems()
        for scale in SCALES
    }
    assert {path for path in wanted if not path.exists()} == set()


def test_goldens_that_share_prompts_only_are_the_others_but_for_counts() -> None:
    """The same ids on another BLAS, and not more of them adopted."""
    for path in sorted((GOLDEN / "tiny").rglob("*.json")):
        whole, less = (
            json.loads((GOLDEN / name / path.relative_to(GOLDEN / "tiny")).read_text()) for name in SHIPPED
        )
        assert [entry["ids"] for entry in whole.values()] == [entry["ids"] for entry in less.values()]
        assert all(less[id_]["cached"] <= whole[id_]["cached"] for id_ in whole)

"""Every file under golden/ belongs to a live case, and every case that compares goldens has its files."""

from __future__ import annotations

from conformance.collect import SPECS
from conformance.golden import case_stem, orphans
from conformance.load import load, spec_files
from conformance.plan import SCALES
from conformance.rungs import rungs
from conformance.session import GOLDEN


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
    left = [GOLDEN / "tiny" / "adopt" / f"warm-burst.{scale}.json" for scale in ("ci", "full")]
    assert orphans(GOLDEN, live_stems() - {"adopt/warm-burst"}) == left


def test_every_case_that_compares_goldens_has_them_at_each_scale() -> None:
    wanted = {GOLDEN / "tiny" / f"{stem}.{scale}.json" for stem in live_stems() for scale in SCALES}
    assert {path for path in wanted if not path.exists()} == set()

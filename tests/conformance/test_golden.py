"""Golden files: where they live, what they hold, when they are equal, and which belong to nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.golden import (
    case_stem,
    data,
    equal,
    extension,
    location,
    name_of,
    name_of_engine,
    orphans,
)
from conformance.verdict import Status
from tests.conformance.builders import burst, facts, reply, seed, workload

ROOT = Path("golden")
DIGEST = "7549504be94fa7e0"
"""First 16 digits of the sha256 of the seed's `[[ids], null]`, by sha256sum."""


def test_a_golden_lives_by_target_case_and_scale() -> None:
    assert location(ROOT, "tiny", "adopt/warm-burst", None, "full") == Path(
        "golden/tiny/adopt/warm-burst.full.json"
    )


def test_a_rung_and_a_name_are_part_of_it() -> None:
    path = location(ROOT, "tiny", "adopt/ladder", "n=1G-1", "ci", "second")
    assert path == Path("golden/tiny/adopt/ladder.n.1g-1.second.ci.json")


def test_rungs_that_differ_in_a_sign_are_different_files() -> None:
    rungs = ["n=1G-1", "n=1G+1", "n=1G/1", "n=1G*1", "n=1G1"]
    stems = [case_stem("adopt/ladder", rung) for rung in rungs]
    assert len(set(stems)) == len(rungs)
    assert all(set(stem) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-/") for stem in stems)


def test_a_target_with_an_illegal_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'My_Server' may hold only a-z, 0-9, dot and dash"):
        location(ROOT, "My_Server", "adopt/warm-burst", None, "full")


def test_a_golden_holds_what_is_reviewed() -> None:
    outcome = reply(seed().plan, 0, 1, token_ids=list(range(18)), gaps=[0.126, 1.0], text="abc", cached=192)
    assert data(workload(outcome), "seed") == {
        "seed": {
            "prompt": DIGEST,
            "cached": 192,
            "finish": "length",
            "ids": ["0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15", "16 17"],
            "text": "abc",
            "gaps": ["0.13 1.00"],
        }
    }


def test_other_prompts_have_other_digests() -> None:
    found = data(workload(*burst([0, 0])), "eight")
    assert found["eight[0]"]["prompt"] != found["eight[1]"]["prompt"]
    assert len(found["eight[0]"]["prompt"]) == 16


def test_replies_without_ids_or_gaps_are_still_a_golden() -> None:
    found = data(workload(seed(token_ids=None, gaps=None)), "seed")["seed"]
    assert (found["ids"], found["gaps"]) == ([], [])


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"ids": ["1 2"], "text": "x", "cached": 0, "gaps": ["0.10 1.00"]} | changes}


@pytest.mark.parametrize("gaps", [["0.10 1.00"], ["0.11 1.01"], ["0.10", "1.00"]])
def test_gaps_may_differ_by_noise(gaps: list[str]) -> None:
    assert equal(entry(gaps=gaps), entry())


@pytest.mark.parametrize("gaps", [["0.13 1.00"], ["0.10"], [], ["0.10 x"], "0.10 1.00", [0.1], 7])
def test_gaps_may_not_differ_by_more(gaps: Any) -> None:
    assert not equal(entry(), entry(gaps=gaps))


@pytest.mark.parametrize("change", [{"ids": ["1 3"]}, {"text": "y"}, {"cached": 32}])
def test_everything_else_must_be_equal(change: dict[str, Any]) -> None:
    assert not equal(entry(**change), entry())


@pytest.mark.parametrize("old", [None, [], {"b": {}}, {"a": 1}, {}])
def test_a_file_of_another_shape_is_not_equal(old: object) -> None:
    assert not equal(entry(), old)


NAME = "golden/tiny/adopt/warm-burst.full.json"

RUN = """
    from pathlib import Path
    from conformance.golden import compare
    from tests.conformance.builders import seed, workload

    def test_golden(snapshot):
        made = workload(seed(**{changes!r}))
        verdict = compare(snapshot, Path({name!r}), made, "seed", "out/1")
        lines = [verdict.status, verdict.reason + verdict.witness, *verdict.observed]
        Path("verdict.txt").write_text("\\n".join(lines))
"""


def compared(pytester: pytest.Pytester, *options: str, **changes: Any) -> list[str]:
    """Status, reason or witness, and what was observed, in a session of its own."""
    pytester.makepyfile(RUN.format(changes=changes, name=NAME))
    pytester.runpytest(*options).assert_outcomes(passed=1)
    return (pytester.path / "verdict.txt").read_text(encoding="utf-8").split("\n")


def reviewed(root: Path, text: str | None = None) -> Path:
    """Put a golden file of the standard seed there, as JSON by hand."""
    path = root / NAME
    path.parent.mkdir(parents=True)
    whole = text or json.dumps(data(workload(seed()), "seed"), indent=2, sort_keys=True) + "\n"
    path.write_text(whole, encoding="utf-8")
    return path


def test_without_a_file_nothing_is_compared(pytester: pytest.Pytester) -> None:
    assert compared(pytester) == [
        Status.NOT_RUN,
        "no tiny/adopt/warm-burst.full.json; --snapshot-update writes it",
    ]


def test_equal_replies_pass(pytester: pytest.Pytester) -> None:
    reviewed(pytester.path)
    assert compared(pytester) == [Status.PASS, ""]


def test_gap_noise_passes(pytester: pytest.Pytester) -> None:
    reviewed(pytester.path)
    assert compared(pytester, gaps=[1.01] * 8)[0] == Status.PASS


def test_changed_replies_fail_with_a_readable_diff(pytester: pytest.Pytester) -> None:
    reviewed(pytester.path)
    status, witness, *diff = compared(pytester, token_ids=[0, 1, 2, 9, 4, 5, 6, 7])
    assert status == Status.FAIL
    assert "--snapshot-update writes the new ones" in witness
    assert [line.strip() for line in diff if line.strip()[:1] in ("+", "-")] == [
        '-       "0 1 2 3 4 5 6 7"',
        '+       "0 1 2 9 4 5 6 7"',
    ]


def test_a_broken_file_fails(pytester: pytest.Pytester) -> None:
    reviewed(pytester.path, "{")
    assert compared(pytester)[0] == Status.FAIL


def test_updating_writes_for_review_and_keeps_other_goldens(pytester: pytest.Pytester) -> None:
    other = reviewed(pytester.path, "{}").with_name("another.full.json")
    other.write_text("{}", encoding="utf-8")
    assert compared(pytester, "--snapshot-update")[0] == Status.PASS
    written = json.loads((pytester.path / NAME).read_text(encoding="utf-8"))
    assert written["seed"]["ids"] == ["0 1 2 3 4 5 6 7"]
    assert other.exists()
    assert compared(pytester) == [Status.PASS, ""]


def test_no_golden_is_ever_unused(tmp_path: Path) -> None:
    path = reviewed(tmp_path)
    assert list(extension(path)().discover_snapshots(test_location=None)) == []


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}", encoding="utf-8")


LIVE = {"adopt/warm-burst", "adopt/ladder.n.1g-1"}


def test_files_of_live_cases_are_no_orphans(tmp_path: Path) -> None:
    make(tmp_path, "tiny/adopt/warm-burst.full.json", "vllm-0.9/adopt/ladder.n.1g-1.ci.json")
    assert orphans(tmp_path, LIVE) == []


@pytest.mark.parametrize(
    "name",
    [
        "tiny/adopt/gone.full.json",
        "tiny/adopt/warm-burst.json",
        "tiny/adopt/warm-burst.huge.json",
        "tiny/adopt/warm-burst.full.json.orig",
        "tiny/warm-burst.full.json",
        "adopt/warm-burst.full.json",
        "notes.txt",
    ],
)
def test_files_of_no_live_case_are(tmp_path: Path, name: str) -> None:
    make(tmp_path, "tiny/adopt/warm-burst.ci.json", name)
    assert orphans(tmp_path, LIVE) == [tmp_path / name]


def test_an_empty_folder_is_an_orphan(tmp_path: Path) -> None:
    (tmp_path / "tiny" / "gone").mkdir(parents=True)
    assert orphans(tmp_path, LIVE) == [tmp_path / "tiny" / "gone"]


def test_baselines_and_hidden_files_belong_to_no_case(tmp_path: Path) -> None:
    make(tmp_path, "baselines/linux.json", ".gitkeep", "tiny/adopt/.keep")
    assert orphans(tmp_path, LIVE) == []


def test_the_change_is_told_in_words_before_the_diff(pytester: pytest.Pytester) -> None:
    reviewed(pytester.path)
    _, witness, first, *_ = compared(pytester, token_ids=[0, 1, 2, 9, 4, 5, 6, 7], cached=32)
    words = "seed: token 3 is 9, reviewed 3; top-2 gap there 1.00, reviewed 1.00; cached 32, reviewed 0"
    assert first == words
    assert witness.startswith(f"{words}. The replies are not those that were reviewed in {NAME}")


NEW_ONLY = "--snapshot-update-new-only"


def test_new_only_writes_what_has_no_file_yet(pytester: pytest.Pytester) -> None:
    assert compared(pytester, NEW_ONLY) == [Status.PASS, ""]
    assert compared(pytester) == [Status.PASS, ""]


def test_new_only_never_overwrites(pytester: pytest.Pytester) -> None:
    path = reviewed(pytester.path)
    before = path.read_bytes()
    assert compared(pytester, NEW_ONLY, cached=32)[0] == Status.FAIL
    assert path.read_bytes() == before


def test_each_model_has_goldens_of_its_own() -> None:
    names = [name_of(model) for model in ("tiny", "mlx-community/Qwen3-0.6B", "/models/My Model/", "///")]
    assert names == ["tiny", "mlx-community-qwen3-0.6b", "models-my-model", "model"]


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"blas": "builtin", "generated_reusable": True}, "tiny"),
        ({"blas": "builtin", "generated_reusable": False}, "tiny"),
        ({"generated_reusable": False}, "tiny"),
        ({"blas": "libopenblas.so.0", "generated_reusable": True}, "tiny"),
        ({"blas": "libopenblas.so.0", "generated_reusable": False}, "tiny.prompts-only"),
        ({"blas": "builtin", "sharing": "one_shot"}, "tiny.one-shot"),
        ({"granule": 32}, "tiny"),
        ({"granule": 64}, "tiny.granule-64"),
        ({"granule": 64, "sharing": "one_shot"}, "tiny.one-shot.granule-64"),
    ],
)
def test_an_engine_that_was_started_to_share_less_has_goldens_of_its_own(
    told: dict[str, Any], name: str
) -> None:
    assert name_of_engine(facts(model="tiny", **told)) == name

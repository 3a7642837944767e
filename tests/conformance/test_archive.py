"""A history is read a workload at a time, to the same facts, with an index in memory and no more."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.archive import Archive, by_target
from conformance.history import Facts
from conformance.record import HistoryError, Recorder, read
from tests.conformance.builders import facts, reply, seed
from tests.conformance.histories import REQUESTS, write_history


def test_a_workload_is_what_a_whole_reading_gives(tmp_path: Path) -> None:
    path = write_history(tmp_path / "h.jsonl", 3, prompt=5)
    whole, archive = read(path).workloads, Archive(path)
    assert list(archive.places) == [("area/c0", ""), ("area/c1", ""), ("area/c2", "")]
    for key in ("area/c2", ""), ("area/c0", ""), ("area/c2", ""):
        assert archive.workload(key) == whole[key]
    assert archive.workload(("area/c1", "")).outcomes[3].plan.prompt_ids == [1, 3, *range(1000, 1005)]


def test_an_index_knows_header_digest_and_target(tmp_path: Path) -> None:
    archive = Archive(write_history(tmp_path / "h.jsonl", 2, prompt=5))
    place = archive.places["area/c1", ""]
    assert (place.digest, place.header["scale"]) == ("digest1", "ci")
    assert archive.facts == facts()
    assert archive.notes == []


def peak(reading: Callable[[], None]) -> int:
    """Bytes of Python's own allocations at their highest."""
    tracemalloc.start()
    try:
        reading()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def one_by_one(path: Path) -> None:
    archive = Archive(path)
    for key in archive.places:
        assert len(archive.workload(key).outcomes) == REQUESTS


def test_memory_follows_the_largest_workload_and_not_the_file(tmp_path: Path) -> None:
    short = write_history(tmp_path / "short.jsonl", 1, prompt=500)
    long = write_history(tmp_path / "long.jsonl", 10, prompt=500)
    assert long.stat().st_size > 8 * short.stat().st_size
    assert peak(lambda: one_by_one(long)) < 1.5 * peak(lambda: one_by_one(short))
    # The control: a whole reading grows with the file.
    assert peak(lambda: void(read(long))) > 4 * peak(lambda: void(read(short)))


def void(value: object) -> None:
    """Takes a value and lets it go."""


def test_a_cut_file_is_read_as_far_as_it_goes_and_says_so(tmp_path: Path) -> None:
    path = write_history(tmp_path / "h.jsonl", 3, prompt=5)
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"area/c1") + 1500])
    archive = Archive(path)
    assert list(archive.places) == [("area/c0", ""), ("area/c1", "")]
    assert not archive.workload(("area/c0", "")).cut
    cut = archive.workload(("area/c1", ""))
    assert (cut.cut, 0 < len(cut.outcomes) < REQUESTS) == (True, True)
    assert archive.notes[0] == f"{path}: ends inside area/c1; judged as far as it goes"
    assert "the last line is cut off; judged as far as it goes" in archive.notes[1]


def test_a_file_cut_inside_a_character_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "h.jsonl")
    recorder.header()
    recorder.begin("a/b", None, "d")
    recorder.close()
    with (tmp_path / "h.jsonl").open("ab") as file:
        file.write(b'{"event":"trouble","text":"\xc3')
    assert Archive(tmp_path / "h.jsonl").workload(("a/b", "")).cut


def test_a_joined_file_of_killed_workers_names_what_was_cut(tmp_path: Path) -> None:
    one = write_history(tmp_path / "one", 1, prompt=5).read_text().rsplit("\n", 2)[0] + "\n"
    other = write_history(tmp_path / "two", 1, prompt=5, area="other").read_text()
    (tmp_path / "both").write_text(one + other)
    archive = Archive(tmp_path / "both")
    assert archive.workload(("area/c0", "")).cut
    assert not archive.workload(("other/c0", "")).cut
    assert archive.notes == [f"{tmp_path / 'both'}: ends inside area/c0; judged as far as it goes"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty, expected a history"),
        ("no json\n", r"h.jsonl:1: not an event of a history"),
        ('{"event":"header","version":99}\n', r":1: .*this version reads up to 1, a newer one is needed"),
        ('{"event":"header","version":1}\n{"event":"dance"}\n', r":2: .*unknown event 'dance'"),
        ('{"event":"header","version":1}\n{"event":"sample","sample":{}}\n', ":2: .*outside of any workload"),
        ('{"event":"header","version":1}\n{"event":"end"}\n', ":2: .*outside of any workload"),
    ],
)
def test_what_is_no_history_is_refused_at_once(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "h.jsonl").write_text(text)
    with pytest.raises(HistoryError, match=message):
        Archive(tmp_path / "h.jsonl")


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, message in (("binary", "cannot be read as a history"), ("absent", "No such file")):
        with pytest.raises(HistoryError, match=message):
            Archive(tmp_path / name)


def test_a_damaged_event_spoils_its_workload_alone(tmp_path: Path) -> None:
    path = write_history(tmp_path / "h.jsonl", 2, prompt=5)
    path.write_text(path.read_text().replace('"sent":1.0', '"sent":"soon"', 1))
    archive = Archive(path)
    with pytest.raises(HistoryError, match=r"h.jsonl:5: not an event of a history: sent: "):
        archive.workload(("area/c0", ""))
    assert len(archive.workload(("area/c1", "")).outcomes) == REQUESTS


def test_the_target_is_the_one_that_most_cases_met(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "h.jsonl")
    recorder.header()
    for name, sharing in (("a", "one_shot"), ("b", "all"), ("c", "all")):
        recorder.begin(f"area/{name}", None, "d")
        recorder.facts("main", facts(sharing=sharing))
        recorder.end()
    recorder.close()
    assert Archive(tmp_path / "h.jsonl").facts == facts(sharing="all")


def test_a_file_that_vanished_is_named(tmp_path: Path) -> None:
    archive = Archive(write_history(tmp_path / "h.jsonl", 1, prompt=5))
    archive.path.unlink()
    with pytest.raises(HistoryError, match=r"h.jsonl: cannot be read any more: .*No such file"):
        archive.workload(("area/c0", ""))


def named(folder: Path, name: str, area: str, facts: Facts | None) -> Archive:
    return Archive(write_history(folder / name, 1, prompt=5, facts=facts, area=area))


def test_files_of_one_run_make_one_target_and_other_runs_their_own(tmp_path: Path) -> None:
    engine, other = facts(version="1.0"), facts(name="vLLM", version="0.33.0+cu128")
    archives = [
        named(tmp_path, "gw0", "a", engine),
        named(tmp_path, "gw1", "b", engine),
        named(tmp_path, "again", "a", engine),
        named(tmp_path, "vllm", "a", other),
    ]
    assert {label: [a.path.name for a in of] for label, of in by_target(archives).items()} == {
        "conformance-engine-1.0": ["gw0", "gw1"],
        "conformance-engine-1.0-2": ["again"],
        "vllm-0.33.0-cu128": ["vllm"],
    }


def test_a_file_that_never_met_its_target_is_labelled_by_its_name(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "Run 1.jsonl")
    recorder.header()
    recorder.begin("a/b", None, "d")
    recorder.trouble("nothing answers")
    recorder.end()
    recorder.close()
    assert list(by_target([Archive(tmp_path / "Run 1.jsonl")])) == ["run-1"]


def test_an_outcome_of_a_solo_finds_its_prompt_too(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "h.jsonl")
    recorder.header()
    recorder.begin("a/b", None, "d")
    recorder.solo("k", reply(seed().plan, 1, 2))
    recorder.end()
    recorder.close()
    found = Archive(tmp_path / "h.jsonl").workload(("a/b", "")).solos["k"][0]
    assert found.plan.prompt_ids == seed().plan.prompt_ids

"""The history file: what is written is what is read, and what is no history is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.history import Facts, Memory, Outcome, Sample, Span, Workload
from conformance.record import HistoryError, Recorder, default_path, read
from tests.conformance.fakeserver import planned

FACTS = Facts(dialect="engine", name="engine", how="engine", block=32)


def outcome(name: str = "seed", prompt: list[int] | str | None = None, **changes: object) -> Outcome:
    plan = planned(name, prompt or [1, 2, 3])
    made = Outcome(id=name, arm="main", step=name, index=0, plan=plan, sent=1.0, ended=2.0, status=200)
    return made.model_copy(update=changes)


def recorded(path: Path) -> Workload:
    """One workload with an event of every kind; its live view."""
    recorder = Recorder(path)
    recorder.header(how="engine")
    recorder.begin("a/b", "n=1", "digest")
    recorder.facts("main", FACTS)
    recorder.outcome(outcome(logprobs=[-0.1, float("nan")], token_ids=[5, 6], cached=0))
    recorder.outcome(outcome("other", prompt="some text"))
    recorder.sample(Sample(at=1.5, arm="main", step="seed", values={"live": 3.0}))
    recorder.memory(Memory(at=1.6, arm="main", step="seed", bytes=1000))
    recorder.span(Span(arm="main", step="seed", kind="send", start=1.0, end=2.0, detail={"idle": True}))
    recorder.solo("k", outcome())
    recorder.trouble("it died")
    live = recorder.workload
    recorder.end()
    recorder.close()
    return live


def test_a_reader_gets_what_the_live_view_showed(tmp_path: Path) -> None:
    live = recorded(tmp_path / "h.jsonl")
    found = read(tmp_path / "h.jsonl").workloads["a/b", "n=1"]
    assert repr(found) == repr(live)
    assert [o.id for o in found.outcomes] == ["seed", "other"]


def test_values_survive_the_file_exactly(tmp_path: Path) -> None:
    recorded(tmp_path / "h.jsonl")
    found = read(tmp_path / "h.jsonl").workloads["a/b", "n=1"]
    first = found.outcomes[0]
    assert first.plan == planned("seed", [1, 2, 3])
    assert first.token_ids == [5, 6]
    assert first.cached == 0
    assert first.logprobs is not None
    assert first.logprobs[0] == -0.1
    assert first.logprobs[1] != first.logprobs[1]
    assert found.outcomes[1].plan.prompt_text == "some text"
    assert found.outcomes[1].cached is None
    assert found.samples == [Sample(at=1.5, arm="main", step="seed", values={"live": 3.0})]
    assert found.memory[0].bytes == 1000
    assert found.spans[0].detail == {"idle": True}
    assert found.solos["k"][0].plan.prompt_ids == [1, 2, 3]
    assert found.trouble == "it died"
    assert not found.cut


def test_a_history_keeps_header_and_digests(tmp_path: Path) -> None:
    recorded(tmp_path / "h.jsonl")
    found = read(tmp_path / "h.jsonl")
    assert found.header["how"] == "engine"
    assert found.digests["a/b", "n=1"] == "digest"


def test_a_prompt_is_stored_once(tmp_path: Path) -> None:
    recorded(tmp_path / "h.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "h.jsonl").read_text().splitlines()]
    assert [line["ids"] for line in lines if line["event"] == "prompt"] == [[1, 2, 3], None]


def test_every_event_is_in_the_file_at_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "h.jsonl")
    recorder.header()
    recorder.begin("a/b", None, "d")
    recorder.trouble("stopped")
    found = read(tmp_path / "h.jsonl").workloads["a/b", ""]
    recorder.close()
    assert found.trouble == "stopped"
    assert found.cut


def test_facts_before_any_workload_hold_for_all(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "h.jsonl")
    recorder.header()
    recorder.facts("main", FACTS)
    for name in ("a/a", "a/b"):
        recorder.begin(name, None, "d")
        recorder.facts("bare", FACTS.model_copy(update={"block": 1}))
        recorder.end()
    recorder.close()
    found = read(tmp_path / "h.jsonl")
    assert found.workloads["a/b", ""].facts["main"] == FACTS
    assert found.workloads["a/b", ""].facts["bare"].block == 1
    assert set(found.facts) == {"main"}


def test_an_edited_number_is_what_the_reader_sees(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    recorded(path)
    path.write_text(path.read_text().replace('"cached":0', '"cached":64'))
    assert read(path).workloads["a/b", "n=1"].outcomes[0].cached == 64


@pytest.mark.parametrize("missing", [1, 10, 40])
def test_a_last_line_cut_short_is_left_out(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "h.jsonl"
    recorded(path)
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:-1])[:-missing])
    found = read(path).workloads["a/b", "n=1"]
    assert found.cut
    assert len(found.outcomes) == 2


def test_an_unobservable_workload_says_why(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "h.jsonl")
    recorder.header()
    recorder.begin("a/b", None, "d")
    recorder.unobservable("no reset")
    recorder.end()
    recorder.close()
    assert read(tmp_path / "h.jsonl").workloads["a/b", ""].unobservable == "no reset"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["no json at all"], r"h.jsonl:1: not an event"),
        (
            ['{"event":"begin","spec":"a/b","rung":"","digest":""}'],
            r":1: .*first line of a history is its header",
        ),
        (['{"event":"header","version":2}'], r":1: .*format 2; this version reads up to 1"),
        (['{"event":"header"}'], r":1: .*version is missing"),
        (['{"event":"header","version":"x"}'], r":1: .*format 'x'; expected a whole number from 1 to 1"),
        (['{"event":"header","version":true}'], r":1: .*format True; expected a whole number"),
        (['{"event":"header","version":0}'], r":1: .*format 0; expected a whole number"),
        (['{"event":"header","version":1,"scale":"huge"}'], r":1: .*scale 'huge'; expected full or ci"),
        (['{"event":"header","version":1}', "[" * 100_000], r":2: not an event"),
        (['{"event":"header","version":1}', "[1]"], r":2: not an event of a history: expected a JSON object"),
        (['{"event":"header","version":1}', '{"event":"dance"}'], r":2: .*unknown event 'dance'"),
        (['{"event":"header","version":1}', '{"event":"end"}'], r":2: .*outside of any workload"),
        (
            ['{"event":"header","version":1}', '{"event":"facts","arm":"main","facts":{"dialect":"x"}}'],
            r":2: .*name: Field required",
        ),
    ],
)
def test_what_is_no_history_is_refused_with_its_line(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(HistoryError, match=message):
        read(path)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, message in (("empty", "empty"), ("binary", "cannot be read"), ("absent", "No such file")):
        with pytest.raises(HistoryError, match=message):
            read(tmp_path / name)


def test_histories_of_two_workers_may_be_joined(tmp_path: Path) -> None:
    recorded(tmp_path / "one")
    killed = (tmp_path / "one").read_text().rsplit("\n", 2)[0] + "\n"
    recorder = Recorder(tmp_path / "two")
    recorder.header()
    recorder.begin("c/d", None, "d")
    recorder.end()
    recorder.close()
    (tmp_path / "both").write_text(killed + (tmp_path / "two").read_text())
    found = read(tmp_path / "both").workloads
    assert {key: workload.cut for key, workload in found.items()} == {
        ("a/b", "n=1"): True,
        ("c/d", ""): False,
    }


def test_a_file_joined_with_itself_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path / "one")
    text = (tmp_path / "one").read_text()
    (tmp_path / "both").write_text(text * 2)
    with pytest.raises(
        HistoryError, match=r"both:1\d: .*a/b\[n=1\] occurs a second time; expected each case once"
    ):
        read(tmp_path / "both")


def test_times_start_with_the_run(tmp_path: Path) -> None:
    ticks = iter([100.0, 100.5])
    recorder = Recorder(tmp_path / "h.jsonl", clock=lambda: next(ticks))
    recorder.close()
    assert recorder.now() == 0.5


def test_the_usual_place_carries_the_worker(tmp_path: Path) -> None:
    assert default_path(tmp_path).parent == tmp_path / ".conformance"
    assert default_path(tmp_path).name.startswith("history-2")
    assert default_path(tmp_path, "gw1").name.endswith("-gw1.jsonl")

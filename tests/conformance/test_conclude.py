"""Each verdict has one outcome in pytest, and only a pass passes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from conformance.conclude import ItemFailure, conclude, entry_of, failure_text, properties
from conformance.history import PlannedRequest, Workload
from conformance.load import load
from conformance.session import Options
from conformance.spec import Spec
from conformance.verdict import Status, Verdict
from tests.conformance.fakeback import CASE, FACTS
from tests.conformance.fakeback import outcome as outcome_of

FOREIGN = FACTS.model_copy(update={"dialect": "vllm"})


def workload(**changes: Any) -> Workload:
    return Workload("area/case", "", {"main": FACTS.model_copy(update=changes)})


def outcome(status: Status, requirement: str = "count/1", on: Workload | None = None, **options: Any) -> str:
    try:
        conclude(Verdict(status, requirement, reason="why"), on or workload(), Options(**options), "the text")
    except pytest.skip.Exception as skipped:
        return f"skipped: {skipped}"
    except ItemFailure as failed:
        return f"failed: {failed}"
    return "passed"


@pytest.mark.parametrize("status", list(Status))
def test_only_a_pass_passes(status: Status) -> None:
    assert (outcome(status) == "passed") is (status is Status.PASS)


@pytest.mark.parametrize(
    "status", [Status.FAIL, Status.ERROR, Status.TIMEOUT, Status.VACUOUS, Status.INCONCLUSIVE]
)
def test_what_fails_fails_with_the_whole_text(status: Status) -> None:
    assert outcome(status) == "failed: the text"


@pytest.mark.parametrize("status", [Status.UNOBSERVABLE, Status.NOT_CLAIMED, Status.NOT_RUN])
def test_what_could_not_be_judged_is_skipped_with_the_reason(status: Status) -> None:
    assert outcome(status) == f"skipped: count/1 {status}: why"


def test_inconclusive_may_be_allowed() -> None:
    assert outcome(Status.INCONCLUSIVE, allow_inconclusive=True).startswith("skipped")
    assert outcome(Status.VACUOUS, allow_inconclusive=True).startswith("failed")


def test_a_failed_should_fails_on_the_bundled_engine_alone() -> None:
    foreign = workload(dialect="vllm")
    assert outcome(Status.FAIL, "adopt/3").startswith("failed")
    assert outcome(Status.FAIL, "adopt/3", foreign) == "skipped: adopt/3 fail: why"
    assert outcome(Status.FAIL, "adopt/3", foreign, should=True).startswith("failed")
    assert outcome(Status.ERROR, "adopt/3", foreign).startswith("failed")


def test_a_failed_must_fails_everywhere() -> None:
    assert outcome(Status.FAIL, "adopt/1", workload(dialect="vllm")).startswith("failed")


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    (tmp_path / "case.yaml").write_text(CASE)
    return load(tmp_path / "case.yaml").spec


def test_properties_are_words_that_make_an_entry_again(spec: Spec) -> None:
    verdict = Verdict(Status.FAIL, "adopt/3", witness="eight[0] adopted nothing")
    found = dict(properties(spec, verdict, workload(), Path("h.jsonl")))
    assert all(isinstance(value, str) for value in found.values())
    assert (found["level"], found["history"]) == ("SHOULD", "h.jsonl")
    entry = entry_of(found)
    assert (entry.spec, entry.requirement, entry.status) == ("area/case", "adopt/3", Status.FAIL)
    assert entry.reason == "eight[0] adopted nothing"


def test_a_workload_that_never_ran_has_no_target(spec: Spec) -> None:
    assert dict(properties(spec, Verdict(Status.ERROR, "count/1"), None, Path("h")))["target"] == ""


def test_a_failure_before_any_request_has_only_the_replay_line(spec: Spec) -> None:
    text = failure_text(
        spec, Verdict(Status.ERROR, "count/1"), None, "case.yaml::counted", Path("h.jsonl"), Options()
    )
    assert text.splitlines()[-1] == "pytest case.yaml::counted --replay=h.jsonl"
    assert "curl" not in text


def footer(spec: Spec, options: Options | None = None, **facts: Any) -> list[str]:
    """The lines to paste under a failure of the first request."""
    request = PlannedRequest(
        id="eight[0]",
        step="eight",
        index=0,
        prompt_ids=[1, 2],
        prompt_text=None,
        parts=[2],
        max_tokens=1,
        salt="s",
        stream=False,
        logprobs=False,
        key="k",
    )
    seen = workload(**facts)
    seen.outcomes.append(outcome_of(request, "main", cached=9))
    verdict = Verdict(Status.FAIL, "count/1", request="eight[0]")
    text = failure_text(spec, verdict, seen, "case.yaml::counted", Path("h.jsonl"), options or Options())
    return text.rpartition("\n\n")[2].splitlines()


def test_a_curl_line_for_the_bundled_engine_follows_on_the_one_that_starts_it(spec: Spec) -> None:
    command = "python -m engine serve --port 8000 --fault leak"
    lines = footer(spec, machine={"command": command})
    assert [line.split(" ")[0] for line in lines] == ["python", "curl", "pytest"]
    assert lines[0] == command


def test_a_history_that_does_not_tell_the_command_gets_the_plain_one(spec: Spec) -> None:
    assert footer(spec)[0] == "python -m engine serve --port 8000"


def test_a_server_of_the_user_s_is_theirs_to_start(spec: Spec) -> None:
    lines = footer(spec, how="serve")
    assert lines[0] == "# first start the server of --serve at http://127.0.0.1:8000"
    assert lines[1].startswith("curl ")


def test_an_endpoint_runs_already(spec: Spec) -> None:
    assert footer(spec, how="endpoint")[0].startswith("curl ")


def test_the_curl_line_is_the_request_as_it_was_sent(spec: Spec) -> None:
    options = Options(url="http://127.0.0.1:9/v1/", access=('-H "X-Team: $T"',))
    words = shlex.split(
        footer(spec, options, dialect="vllm", how="endpoint", asked_model="m", has_salt=True)[0]
    )
    assert words[3:7] == ["http://127.0.0.1:9/v1/completions", "-H", "Content-Type: application/json", "-H"]
    assert words[7] == "X-Team: $T"
    body = json.loads(words[-1])
    assert (body["cache_salt"], body["model"], body["return_token_ids"]) == ("s", "m", True)

"""Requests and waits that can never come are refused at their place, and what only looks like one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.load import load
from conformance.marks import SpecError

HEAD = """\
spec: 1
id: demo/sense
title: A sample
proves: [count/1]
steps:
"""
TAIL = """
expect:
  - counted: {of: a}
"""
ASK = "prompt: [{unique: 8}]"
A = f"  - send: a\n    {ASK}\n"
STARTED = f"  - start: a\n    {ASK}\n"


def write(folder: Path, steps: str) -> Path:
    path = folder / "sense.yaml"
    path.write_text(HEAD + steps + TAIL)
    return path


def refusal(folder: Path, steps: str) -> list[tuple[int, str]]:
    with pytest.raises(SpecError) as caught:
        load(write(folder, steps))
    return [(p.line, p.message) for p in caught.value.problems]


def test_a_flag_is_no_version(tmp_path: Path) -> None:
    path = write(tmp_path, A)
    path.write_text(path.read_text().replace("spec: 1", "spec: true"))
    with pytest.raises(SpecError, match=r"sense\.yaml:1:7: should be 1, not true"):
        load(path)


@pytest.mark.parametrize(
    ("steps", "line", "message"),
    [
        (f"{A}    adapter: z\n", 8, "no dialect has an adapter 'z'"),
        (f"{A}    salt: 'adapter:z'\n", 8, "no dialect has an adapter 'z'"),
        (f"{A}  - reload: r\n    adapter: z\n", 9, "no dialect has an adapter 'z'"),
        (f"  - burst: a\n    {ASK}\n    each: [{{adapter: z}}]\n", 8, "no dialect has an adapter 'z'"),
        (f"{A}    salt: ''\n", 8, "an empty salt is none"),
        (f"  - burst: a\n    {ASK}\n    each: [{{salt: ' '}}]\n", 8, "an empty salt is none"),
        (f"  - burst: a\n    {ASK}\n    each: [{{name: b}}, {{name: b}}]\n", 8, "2 entries are called 'b'"),
        (f"  - burst: a\n    {ASK}\n    each: [{{requests: 60}}, {{requests: 5}}]\n", 8, "these are 65"),
        (f"{STARTED}    stream: false\n  - when: {{request: a, phase: decoding}}\n", 9, "is not streamed"),
        (f"{STARTED}  - when: {{request: a, phase: decoding, tokens: 17}}\n", 8, "'a' has no more than 16"),
        (f"{A}    max_tokens: 3\n    leave: {{phase: decoding}}\n", 9, "leaves after 4 tokens, but no reply"),
    ],
)  # fmt: skip
def test_what_can_never_come_is_refused(tmp_path: Path, steps: str, line: int, message: str) -> None:
    [(found, said)] = refusal(tmp_path, steps)
    assert (found, message in said) == (line, True), said


@pytest.mark.parametrize(
    "steps",
    [
        f"{A}    adapter: b\n    salt: 'adapter:a'\n  - reload: r\n    adapter: a\n",
        f"{A}    salt: none\n",
        f"  - burst: a\n    {ASK}\n    each: [{{requests: 60, name: b}}, {{requests: 4, name: c}}]\n",
        f"{STARTED}    stream: false\n  - when: {{request: a, phase: prefilling}}\n",
        f"{STARTED}  - when: {{request: a, phase: decoding, tokens: 16}}\n",
        f"{STARTED}    max_tokens: 1G\n  - when: {{request: a, phase: decoding, tokens: 17}}\n",
        f"{A}    max_tokens: 4\n    leave: {{phase: decoding}}\n",
        f"{A}    max_tokens: 1\n    leave: {{phase: queued}}\n",
    ],
)
def test_what_can_come_is_not(tmp_path: Path, steps: str) -> None:
    assert load(write(tmp_path, steps)).spec.id == "demo/sense"


@pytest.mark.parametrize(
    ("steps", "line"),
    [
        (f"  - hold: queued\n{A}  - hold: 'off'\n", 7),
        (f"  - hold: prefilling\n  - burst: a\n    requests: 2\n    {ASK}\n", 7),
        (f"  - hold: decoding\n    after: 14\n{A}", 8),
        (f"  - hold: queued\n  - series: a\n    requests: 2\n    {ASK}\n", 7),
        (f"  - hold: queued\n{STARTED}  - join: a\n  - hold: 'off'\n", 9),
        ("  - hold: queued\n  - {turns: a, count: 2, opening: [{unique: 8}], each: [{unique: 8}]}", 7),
        (f"{A}  - hold: queued\n  - churn: noise\n    pools: 1\n", 9),
    ],
)  # fmt: skip
def test_nothing_waits_for_what_is_held(tmp_path: Path, steps: str, line: int) -> None:
    [(found, said)] = refusal(tmp_path, steps)
    assert found == line
    assert said.startswith("would wait for ever")


@pytest.mark.parametrize(
    "steps",
    [
        f"  - hold: queued\n{STARTED}  - hold: 'off'\n  - join: a\n",
        f"  - hold: queued\n  - hold: 'off'\n{A}",
        f"{STARTED}  - hold: queued\n  - join: a\n",
        f"  - hold: queued\n{A}    leave: {{phase: queued}}\n",
        f"  - hold: prefilling\n    after: 1\n{A}",
        f"  - hold: decoding\n    after: 15\n{A}",
    ],
)
def test_what_is_let_go_or_passes_is_no_wait(tmp_path: Path, steps: str) -> None:
    assert load(write(tmp_path, steps)).spec.id == "demo/sense"

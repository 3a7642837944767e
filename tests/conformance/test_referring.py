"""What steps say of each other, and what does not fit: each mistake at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.load import load
from conformance.marks import SpecError
from conformance.rungs import bound, rungs, words
from conformance.spec import Send

GOOD = """\
spec: 1
id: demo/refer
title: A sample
proves: [count/1]
texts: {system: {tokens: 4G, seed: 1}}
for: {how: [rst, fin]}
steps:
  - send: first
    prompt: [system]
  - burst: mixed
    each:
      - {name: warm, requests: 2, prompt: [{repeat_of: first}]}
      - {name: cold, prompt: [{unique: 8}], max_tokens: 3,
         sampling: {stop: ["x", {reply_of: first, token: 2}]}}
  - start: long
    prompt: [{repeat_of: cold}, {reply_of: cold}, {marker: true}]
    leave: {how: $how, phase: decoding}
  - when: {request: long, phase: decoding}
  - join: long
  - repeat: again
    of: warm
  - send: changed
    prompt: [{changed: system, at: 2G}]
    sampling: {logit_bias: {ban_first_of: warm}}
  - churn: noise
    pools: 0.5
  - loop: 2
    steps:
      - start: inner
        messages: [{role: user, content: [system, {reply_of: first}]}]
        adapter: a
      - join: inner
  - turns: talk
    count: 2
    opening: [system]
    each: [{unique: 4}]
  - reset: emptied
  - reload: other
    adapter: a
  - hold: "off"
  - fail: broken
    forward: decode
  - overwrite: spoilt
    block_of: again
expect:
  - counted: {of: warm}
"""
EACH = GOOD[GOOD.index("    each:") : GOOD.index("  - start: long")]
LOOP = "      - loop: 2\n        steps: [{wait: idle}]\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "refer.yaml"
    path.write_text(text)
    return path


def test_everything_of_the_language_loads(tmp_path: Path) -> None:
    spec = load(write(tmp_path, GOOD)).spec
    assert len(spec.steps) == 15


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("repeat_of: first", "repeat_of: talk", "no step above is called 'talk'"),
        ("repeat_of: first", "repeat_of: frist", "no step above is called 'frist'"),
        ("reply_of: cold", "reply_of: warm", "'warm' has 2 requests, and one reply is needed"),
        ("reply_of: cold", "reply_of: mixed", "'mixed' has 3 requests, and one reply is needed"),
        ("{reply_of: first, token", "{reply_of: long, token", "no step above is called 'long'"),
        ("ban_first_of: warm", "ban_first_of: worm", "no step above is called 'worm'"),
        ("of: warm\n", "of: worm\n", "no step above is called 'worm'"),
        ("of: again", "of: noise2", "no step above is called 'noise2'"),
        ("- join: long", "- join: first", "no step called 'first' was started and goes on"),
        ("  - join: long\n", "  - join: long\n  - join: long\n", "no step called 'long' was started"),
        ("{request: long,", "{request: cold,", "no step called 'cold' was started"),
        ("      - join: inner\n", "", "'inner' is started in a loop and not joined in it"),
        ("      - join: inner\n", LOOP, "a loop stands in a loop"),
        ("    pools: 0.5\n", "    pools: 0.5\n    tokens: 5\n", "how long to churn is said once"),
        ("    pools: 0.5\n", "", "how long to churn is said once"),
        ("  - burst: mixed\n", "  - burst: mixed\n    requests: 4\n", "`each` says how many there are"),
        (EACH, "    prompt: [system]\n", "the key 'requests' is missing"),
        ("requests: 2, prompt: [{repeat_of: first}]", "requests: 2", "the key 'prompt' is missing"),
        ("    adapter: a\n      - join", "    prompt: [system]\n      - join", "has a prompt or messages"),
        ("name: cold", "name: first", "a step called 'first' came before"),
        ("how: [rst, fin]", "how: [rst, nope]", "does not fit where it is used"),
        ("how: $how", "how: $who", "no ladder has the words of '$who'"),
        ("how: $how", "how: rst", "no length uses the variable 'how'"),
        ("how: $how", "how: gone", "not 'gone'"),
        ("changed: system", "changed: sistem", "no text is called 'sistem'"),
        ("at: 2G", "at: 2Q", "unknown symbol 'Q'"),
        ("token: 2}", "tokn: 2}", "unknown key 'tokn', did you mean 'token'?"),
        ("{name: cold, prompt", "{nam: cold, prompt", "unknown key 'nam', did you mean 'name'?"),
        ("role: user", "role: nobody", "should be 'system', 'user', 'assistant' or 'tool', not 'nobody'"),
        ("{request: long, phase", "{reqest: long, phase", "unknown key 'reqest', did you mean 'request'?"),
        ("{stop:", "{stopp:", "unknown key 'stopp', did you mean 'stop'?"),
        ("of: warm}", "of: talk, at_least: 1}", "unknown key 'at_least'"),
        ("counted: {of: warm}", "adopters: {of: again, at_least: 3}", "but 'again' has 2 requests"),
        ("forward: decode", "forward: sideways", "should be 'prefill' or 'decode', not 'sideways'"),
        ("- counted: {of: warm}", "- same_as_solo: {of: mixed, as: count/1}\n  - counted: {of: warm}",
         "these replies have 3"),
        ("of: again\nexpect", "of: never\nexpect", "no step above is called 'never'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(SpecError) as caught:
        load(write(tmp_path, GOOD.replace(old, new, 1)))
    assert message in str(caught.value)


def test_a_rung_of_words_is_put_in_their_place(tmp_path: Path) -> None:
    spec = load(write(tmp_path, GOOD)).spec
    assert words(spec) == {"$how"}
    assert rungs(spec) == ["how=rst", "how=fin"]
    on = bound(spec, "how=fin")
    assert words(on) == frozenset()
    assert [getattr(step, "leave", None) and step.leave.how for step in on.steps][2] == "fin"  # type: ignore[union-attr]


def test_a_literal_with_a_dollar_is_no_word(tmp_path: Path) -> None:
    text = GOOD.replace(
        "  - send: first\n    prompt: [system]", "  - send: first\n    prompt: [{literal: $how}]"
    )
    text = text.replace("texts: {system", "texts: {system").replace('stop: ["x"', 'stop: ["$x"')
    on = bound(load(write(tmp_path, text)).spec, "how=fin")
    first = on.steps[0]
    assert isinstance(first, Send)
    assert first.model_dump()["prompt"] == [{"literal": "$how"}]


def test_a_spec_without_words_is_the_same_on_every_rung(tmp_path: Path) -> None:
    text = GOOD.replace("for: {how: [rst, fin]}\n", "").replace("how: $how", "how: rst")
    spec = load(write(tmp_path, text)).spec
    assert bound(spec, "") is spec

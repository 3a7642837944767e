"""Moves in a pool that is too small for all: churn, a queue, growth without room, what is evicted when.

Knows those moves and what must hold of them. Does not know how moves become a workload (`strategies.py`), nor
how one is performed or judged.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from conformance.explore import drawn
from conformance.explore.drawn import Draw
from conformance.explore.moves import ask, sent_again
from conformance.explore.script import Json, Script

_GROWING = ((2, "pool/2-B-1", 36), (3, "pool/3-B", 72))
"""Requests, their prompts and replies: a little too much, and so much that those who stay take the blocks of
the one who steps back."""


def traffic(draw: Draw, script: Script) -> None:
    """Strangers: a few short prompts, or as many as the pool holds where it is small; then an old friend."""
    if not script.roomy:
        name = script.step("churn", script.name("churn"), pools=draw(st.sampled_from((1.2, 0.5))),
                           each=draw(st.sampled_from(("pool/8", "3*pool/4"))))  # fmt: skip
        script.must("index_bounded", of=name, pools=0.1)
        script.must("in_budget", churn=name)
        return
    script.step("series", script.name("strangers"), requests=draw(st.sampled_from((2, 9))), salt="private",
                prompt=[{"unique": 2, "seed": 9}], max_tokens=1)  # fmt: skip
    if script.again:
        sent_again(script, draw(st.sampled_from(script.again)))


def queue(draw: Draw, script: Script) -> None:
    """The pool is full: a request waits for one that evicts what it had matched."""
    if script.profile != "tight" or not script.facts.has_test:
        return ask(draw, script)
    prompt: list[Any] = [drawn.text(draw, script), {"unique": 16, "seed": 1}]
    script.step("send", script.name("seed"), prompt=prompt, max_tokens=1)
    since = script.mark()
    script.steps.append({"hold": "prefilling", "after": 1})
    free = draw(st.sampled_from((2, 3, 4)))
    hog = script.step("start", script.name("hog"), salt="private",
                      prompt=[{"unique": f"pool-{free}B", "seed": 1}],
                      max_tokens=draw(st.sampled_from((1, 33))))  # fmt: skip
    script.steps.append({"when": {"request": hog, "phase": "prefilling", "fraction": 0.05}})
    queued = script.step("start", script.name("queued"), prompt=prompt, max_tokens=2)
    script.steps += [{"hold": "off"}, {"join": hog}, {"join": queued}]
    until = script.mark()
    script.must("queued_truly", of=queued, since=since, until=until)
    script.must("same_as_solo", of=queued, **script.grade())
    return None


def overflow(draw: Draw, script: Script) -> None:
    """More is admitted than can grow to its end, so that someone must step back."""
    if script.profile != "overcommit":
        return ask(draw, script)
    count, tokens, growth = draw(st.sampled_from(_GROWING))
    since = script.mark()
    name = script.step("burst", script.name("growing"), requests=count,
                       max_tokens=growth + draw(st.integers(0, 4)),
                       prompt=[{"unique": tokens, "seed": draw(drawn.SEED)}])  # fmt: skip
    until = script.mark()
    script.must("counted", of=name)
    script.must("all_end", of=name)
    script.must("resumed", of=name, since=since, until=until)
    return None


def _held(script: Script, name: str, tokens: str) -> str:
    """A text that takes a part of the pool."""
    script.texts.setdefault(name, {"tokens": tokens, "seed": 11})
    return name


def too_long(draw: Draw, script: Script) -> None:
    """A prompt above the whole budget, beside an ordinary one."""
    control = script.step("send", script.name("ordinary"), prompt=[{"unique": "pool/4"}], max_tokens=2)
    script.idle()
    name = script.step("series", script.name("too_long"), requests=draw(st.integers(1, 2)),
                       prompt=[{"unique": "pool+4B"}], max_tokens=2)  # fmt: skip
    script.idle()
    script.must("refused_at_once", of=name, control=control)


def hot(draw: Draw, script: Script) -> None:
    """A prefix that is asked for again while strangers fill the pool."""
    text = _held(script, "hot", "pool/6")
    script.step("send", script.name("seed"), prompt=[text], max_tokens=1)
    script.idle()
    churn, use = script.name("churn"), script.name("use")
    steps: list[Json] = [
        {"churn": churn, "pools": 0.25, "each": "pool/8"},
        {"send": use, "prompt": [text], "max_tokens": 1},
    ]
    script.steps.append({"loop": draw(st.integers(5, 7)), "steps": steps})
    script.must("stays", of=use, churn=churn, pools=1.2)
    script.idle()


def chain(draw: Draw, script: Script) -> None:
    """A long prompt, of which strangers take a part."""
    text = _held(script, "chain", "pool/2")
    script.step("send", script.name("whole"), prompt=[text], max_tokens=1)
    since = script.mark()
    script.step("churn", script.name("churn"), each="pool/8",
                tokens=draw(st.sampled_from(("5*pool/8", "3*pool/4", "7*pool/8"))))  # fmt: skip
    until = script.mark()
    again = script.step("send", script.name("again"), prompt=[text], max_tokens=1)
    script.idle()
    script.must("tail_first", of=again, since=since, until=until)


def recycle(draw: Draw, script: Script) -> None:
    """A prompt whose blocks belong to others by the time it comes again."""
    prompt = [_held(script, "old", "pool/6"), drawn.tail(draw)]
    script.step("send", script.name("first"), prompt=prompt, max_tokens=2)
    since = script.mark()
    script.step("churn", script.name("churn"), pools=2.2, each="pool/4")
    until = script.mark()
    again = script.step("send", script.name("again"), prompt=prompt, max_tokens=2)
    script.idle()
    script.must("recycled", of=again, since=since, until=until)


def outlast(draw: Draw, script: Script) -> None:
    """A long decode on shared blocks, while a sharer ends and strangers take the pool over."""
    text = _held(script, "shared", "6B")
    script.step("send", script.name("seed"), prompt=[text, {"unique": 16}], max_tokens=1)
    script.idle()
    long = script.step("start", script.name("long"), prompt=[text, {"unique": 16, "seed": 1}],
                       max_tokens=64)  # fmt: skip
    script.steps.append({"when": {"request": long, "phase": "decoding", "tokens": draw(st.integers(1, 3))}})
    script.step("send", script.name("sharer"), prompt=[text, {"unique": 16, "seed": 2}], max_tokens=1)
    churn = script.step("churn", script.name("churn"), pools=1.2, each="pool/3")
    script.steps.append({"join": long})
    script.idle()
    script.must("unrecycled", of=long, churn=churn)

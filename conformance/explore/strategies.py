"""Workloads made up by Hypothesis: a few moves, one after another, on one target.

Knows moves: what clients of a prefix cache do, from a plain question to a cancel in the queue, with lengths
around the edges of blocks. Does not know how a workload is performed or judged; what must hold of the steps
of a move is said where they are made (`script.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from hypothesis import strategies as st

from conformance.explore import drawn
from conformance.explore.drawn import Draw
from conformance.explore.script import Json, Script
from conformance.history import Facts
from conformance.permission import PERMISSIONS

Move = Callable[[Draw, Script], None]

MOST_MOVES = 4
_LEAVES: tuple[Json, ...] = (
    {"phase": "decoding", "tokens": 1},
    {"phase": "first_token", "how": "fin"},
    {"phase": "decoding", "tokens": 1, "how": "abort"},
)
_LONG = 64
"""Tokens of a reply that nobody waits for: enough to leave before its end, over a socket too."""


# ---- moves


def ask(draw: Draw, script: Script) -> None:
    """One request, several at once, or one after another."""
    kind = draw(st.sampled_from(("send", "burst", "series")))
    count = 1 if kind == "send" else draw(st.integers(2, 3))
    identity, options = drawn.identity(draw, script), drawn.options(draw, script)
    keys: Json = {} if kind == "send" else {"requests": count}
    keys |= {"prompt": drawn.prompt(draw, script), "max_tokens": script.reply(draw(drawn.REPLY))}
    keys |= {**identity, **options, **({} if draw(st.booleans()) else {"stream": False})}
    if kind == "burst" and not options:
        _cold(script, keys)
    name = script.name("ask")
    cold = kind == "burst" and _is_shared(script, identity, options)
    if cold and script.facts.has_test:
        _gathered(script, name, keys)
    else:
        script.step(kind, name, **keys)
    script.general(name, count, options.get("sampling"))
    if cold:
        script.must("computed_once", of=name)
    script.again.append(name)
    if kind == "send":
        script.singles.append(name)
    script.idle()


def _gathered(script: Script, name: str, keys: Json) -> None:
    """A burst whose requests stand in the queue until all are there, however fast the target is."""
    script.steps.append({"hold": "queued"})
    script.step("start", name, **keys)
    script.steps += [{"when": {"request": name, "phase": "queued"}}, {"hold": "off"}, {"join": name}]


def _cold(script: Script, keys: Json) -> None:
    """Requests that are all alike show no owner: each gets an end of its own."""
    if not any("unique" in part for part in keys["prompt"] if isinstance(part, dict)):
        keys["prompt"] = [*keys["prompt"], {"unique": 3}]


def _is_shared(script: Script, identity: Json, options: Json) -> bool:
    """Whether requests of one burst may use what the others store meanwhile."""
    private = identity.get("salt") == "private" or "prompt_logprobs" in options.get("sampling", {})
    return script.shares and script.roomy and bool(script.facts.shares_in_flight) and not private


def repeat(draw: Draw, script: Script) -> None:
    """What was asked before, once more: after other traffic, at once, or not streamed."""
    if not script.again:
        return ask(draw, script)
    of = draw(st.sampled_from(script.again))
    times = draw(st.integers(1, 2))
    keys: Json = {"of": of, "times": times}
    keys |= {"stream": False} if draw(st.booleans()) else {}
    keys |= {"at_once": True} if draw(st.booleans()) else {}
    _sent_again(script, **keys)
    return None


def _sent_again(script: Script, of: str, **keys: Any) -> None:
    sampling = next((s.get("sampling") for s in script.steps if of in s.values()), None)
    name = script.step("repeat", script.name("again"), of=of, **keys)
    script.general(name, 1, sampling)
    script.idle()


def stored(draw: Draw, script: Script) -> None:
    """What a step leaves in the pool, and whether it is found again."""
    if not (script.is_whole and script.roomy and script.shares):
        return ask(draw, script)
    kind = draw(st.sampled_from(("send", "series", "burst")))
    keys: Json = {} if kind == "send" else {"requests": draw(st.integers(2, 3))}
    keys |= {"prompt": drawn.prompt(draw, script), "max_tokens": script.reply(draw(st.integers(1, 3)))}
    since = script.mark()
    name = script.step(kind, script.name("stored"), **keys)
    until = script.mark()
    again = script.step("repeat", script.name("again"), of=name)
    script.general(again, 1)
    script.must("kept_once", of=name, again=again, since=since, until=until)
    script.idle()
    return None


def leave(draw: Draw, script: Script) -> None:
    """Clients that walk away, beside others that stay."""
    said = [leave for leave in _LEAVES if script.facts.has_abort or leave.get("how") != "abort"]
    prompt = drawn.prompt(draw, script)
    # All find it stored: over a socket it is chance who comes first, and would store it for the others.
    script.step("send", script.name("seed"), prompt=prompt, max_tokens=script.reply(1))
    script.idle()
    left, stay = script.name("left"), script.name("stay")
    entries: list[Json] = [
        {
            "name": left,
            "requests": draw(st.integers(1, 2)),
            "leave": draw(st.sampled_from(said)),
            "max_tokens": _LONG,
        },
        {"name": stay, "requests": draw(st.integers(1, 2))},
    ]
    script.step("burst", script.name("burst"), prompt=[*prompt, {"unique": 3, "seed": 1}],
                max_tokens=script.reply(12), each=entries)  # fmt: skip
    script.is_whole = False
    script.general(stay, 1)
    script.idle()


def stop_work(draw: Draw, script: Script) -> None:
    """Clients that leave long before the end of their replies."""
    before = script.mark()
    script.step("burst", script.name("left"), requests=2, prompt=[drawn.tail(draw)], max_tokens=256,
                leave={"phase": "decoding", "tokens": 2})  # fmt: skip
    left = str(script.steps[-1]["burst"])
    since = script.mark()
    script.steps.append({"wait": 0.2})
    until = script.step("mark", script.name("m"))
    script.is_whole = False
    script.must("work_stops", left=left, before=before, since=since, until=until)


def retry(draw: Draw, script: Script) -> None:
    """A client that leaves in mid-prefill and comes back."""
    chunk, granule = script.facts.chunk, script.facts.granule
    if not (script.facts.has_test and script.roomy and chunk and granule):
        return leave(draw, script)
    prompt = [{"unique": f"3C+{draw(st.integers(1, 40))}", "seed": draw(drawn.SEED)}]
    script.steps.append({"hold": "prefilling", "after": 2 * chunk})
    salt = script.name("left")
    left = script.step("start", salt, prompt=prompt, salt=salt, max_tokens=4,
                       leave={"phase": "prefilling", "fraction": 0.9})  # fmt: skip
    script.steps += [{"join": left}, {"hold": "off"}]
    script.idle()
    again = script.step("send", script.name("again"), prompt=prompt, salt=salt, max_tokens=1)
    script.is_whole = False
    script.must("retry_reuses", left=left, again=again)
    return None


def stop(draw: Draw, script: Script) -> None:
    """A reply that a stop string ends."""
    if "stop" not in script.facts.can:
        return ask(draw, script)
    prompt = drawn.prompt(draw, script)
    free = script.step("send", script.name("free"), prompt=prompt, max_tokens=16)
    script.must("logprobs_true", of=free)
    script.idle()
    sampling = {"stop": [{"reply_of": free, "token": draw(st.integers(0, 1))}]}
    stopped = script.step("send", script.name("stopped"), prompt=prompt, max_tokens=script.reply(3),
                          sampling=sampling)  # fmt: skip
    script.general(stopped, 1, sampling)
    script.idle()
    return None


def talk(draw: Draw, script: Script) -> None:
    """A conversation: each turn goes on from the reply of the last one."""
    chat: Json = {"chat": True} if script.facts.renders and draw(st.booleans()) else {}
    name = script.step("turns", script.name("turns"), count=draw(st.integers(2, 3)),
                       opening=[drawn.text(draw, script)],
                       each=[{"unique": draw(drawn.TAIL)}], max_tokens=script.reply(draw(st.integers(1, 3))),
                       **chat)  # fmt: skip
    script.must("counted", of=name)
    script.must("same_as_solo", of=name, **script.grade())
    if script.roomy and script.shares:
        script.must("turns_adopt", of=name)
    script.idle()


def declined(draw: Draw, script: Script) -> None:
    """A request that cannot be served from stored rows, between two that can."""
    if "prompt_logprobs" not in script.facts.can or not (script.roomy and script.shares):
        return ask(draw, script)
    prompt = [drawn.text(draw, script), drawn.tail(draw)]
    script.step("send", script.name("seed"), prompt=prompt, max_tokens=script.reply(1))
    since = script.mark()
    name = script.step("send", script.name("declined"), prompt=prompt, max_tokens=script.reply(1),
                       sampling={"prompt_logprobs": True})  # fmt: skip
    until = script.mark()
    again = script.step("send", script.name("again"), prompt=prompt, max_tokens=script.reply(1))
    script.must("declined", of=name, again=again, since=since, until=until)
    script.must("chosen_alike", of=name, reuse=False)
    return None


def count(draw: Draw, script: Script) -> None:
    """One prompt that is stored, asked for in different ways."""
    if not (script.roomy and script.shares):
        return ask(draw, script)
    prompt = [drawn.text(draw, script), drawn.tail(draw)]
    tokens = script.reply(draw(st.integers(1, 2)))
    script.step("send", script.name("seed"), prompt=prompt, max_tokens=tokens)
    script.idle()
    one = script.step("send", script.name("one"), prompt=prompt, max_tokens=tokens)
    many: Json = {"sampling": {"n": 3}} if "n" in script.facts.can else {}
    other = script.step("send", script.name("many"), prompt=prompt, max_tokens=tokens,
                        stream=draw(st.booleans()), **many)  # fmt: skip
    script.must("same_usage", of=[one, other])
    script.general(other, 1, many.get("sampling"))
    return None


def refuse(draw: Draw, script: Script) -> None:
    """A hit, a miss, and a request that is refused: each is counted once."""
    if script.facts.how != "engine":
        return ask(draw, script)
    prompt = [drawn.text(draw, script), drawn.tail(draw)]
    script.step("send", script.name("cold"), prompt=prompt, max_tokens=script.reply(1))
    script.idle()
    script.step("send", script.name("warm"), prompt=prompt, max_tokens=script.reply(1))
    script.step("send", script.name("refused"), prompt=prompt, sampling={"n": 64})
    script.idle()
    return None


def fail(draw: Draw, script: Script) -> None:
    """A forward that fails, and the same requests once more."""
    if not script.facts.has_test:
        return ask(draw, script)
    forward = draw(st.sampled_from(("prefill", "decode")))
    count = draw(st.integers(1, 3))
    before = script.mark()
    script.step(
        "fail",
        script.name("fail"),
        forward=forward,
        after=draw(st.integers(0, count - 1 if forward == "prefill" else 1)),
    )
    struck = script.name("struck")
    name = script.step("start", struck, requests=count, salt=struck, max_tokens=script.reply(4),
                       prompt=[{"unique": script.length(2), "seed": draw(drawn.SEED)}])  # fmt: skip
    script.steps.append({"join": name})
    after = script.mark()
    again = script.step("repeat", script.name("again"), of=name)
    at_most = 1 if forward == "prefill" else count
    script.must("contained", of=name, again=again, before=before, after=after, at_most=at_most,
                written=int(forward == "decode"))  # fmt: skip
    script.is_whole = False
    return None


def reset(draw: Draw, script: Script) -> None:
    """The cache is emptied."""
    if script.facts.has_reset:
        script.idle()
        script.steps.append({"reset": True})
        script.is_whole = False


def traffic(draw: Draw, script: Script) -> None:
    """Strangers: a few short prompts, or as many as the pool holds where it is small; then an old friend."""
    if not script.roomy:
        name = script.step("churn", script.name("churn"), pools=draw(st.sampled_from((1.0, 0.5))))
        script.must("index_bounded", of=name, pools=0.1)
        return
    script.step("series", script.name("strangers"), requests=draw(st.sampled_from((2, 9))), salt="private",
                prompt=[{"unique": 2, "seed": 9}], max_tokens=1)  # fmt: skip
    if script.again:
        _sent_again(script, draw(st.sampled_from(script.again)))


def stranger(draw: Draw, script: Script) -> None:
    """A stored prompt under another identity, and once more under that one."""
    adapters = script.facts.adapters
    pairs: list[tuple[Json, Json, str]] = [({}, {"salt": "other"}, "key/1")] if script.facts.has_salt else []
    pairs += [({}, {"adapter": name}, "key/1") for name in adapters[:1]]
    if pairs and adapters and script.facts.has_salt:
        pairs.append(({"adapter": adapters[0], "salt": "none"}, {"salt": f"adapter:{adapters[0]}"}, "key/7"))
    if not (pairs and script.roomy and script.shares):
        return ask(draw, script)
    first, second, requirement = draw(st.sampled_from(pairs))
    said = {"prompt": [drawn.text(draw, script), drawn.tail(draw)], "max_tokens": script.reply(2)}
    stored = script.step("send", script.name("stored"), **said, **first)
    script.idle()
    name = script.step("send", script.name("stranger"), **said, **second)
    script.idle()
    again = script.step("send", script.name("again"), **said, **second)
    script.must("own_match", requirement, of=name, positive=again, stored=stored)
    return None


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
    name = script.step("burst", script.name("growing"), requests=2, max_tokens=draw(st.integers(36, 40)),
                       prompt=[{"unique": "pool/2-B-1", "seed": draw(drawn.SEED)}])  # fmt: skip
    script.must("counted", of=name)
    if draw(st.booleans()):
        script.must("same_as_solo", of=name, **script.grade())
    return None


_ANYWHERE: tuple[Move, ...] = (
    ask, repeat, ask, stored, repeat, leave, talk, stop, declined, count, traffic, stranger, fail, refuse,
    retry, reset, stop_work,
)  # fmt: skip
MOVES: dict[str, tuple[Move, ...]] = {
    "default": _ANYWHERE,
    "collide": (ask, repeat, stored),
    "tight": (ask, repeat, traffic, queue, leave, queue),
    "overcommit": (overflow, ask, repeat),
}
"""What is done in each launch profile; one that the target lacks is never drawn."""
_OFTEN = ("default",) * 6 + ("tight", "collide", "tight", "overcommit")


_NEEDS: dict[Move, str] = {leave: "disconnect", stop_work: "disconnect", retry: "disconnect", reset: "reset"}
"""What a move does to others who use the server (`permission.py`)."""


@st.composite
def workloads(
    draw: Draw, facts: Facts, profiles: Sequence[str] = ("default",), allow: Collection[str] = PERMISSIONS
) -> Json:
    """A whole workload, as the content of a spec file; of moves that the server may be asked to bear."""
    profile = draw(st.sampled_from([name for name in _OFTEN if name in profiles]))
    moves = [move for move in MOVES[profile] if move not in _NEEDS or _NEEDS[move] in allow]
    script = Script(facts, profile)
    start = script.mark()
    most = MOST_MOVES if script.roomy else 2
    for move in draw(st.lists(st.sampled_from(moves), min_size=1, max_size=most)):
        move(draw, script)
    end = script.mark()
    script.whole(start, end)
    return script.data()

"""Moves of one engine at ease: questions, repeats, conversations, choices, company, strangers.

Knows what clients of a prefix cache do while there is room and nothing goes wrong, with lengths around the
edges of blocks; what must hold of the steps of a move is said where they are made (`script.py`). Does not
know how moves become a workload (`strategies.py`), nor how one is performed or judged.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from conformance.explore import drawn
from conformance.explore.drawn import Draw
from conformance.explore.script import Json, Script

_MATES = ((1, 1, 1), (2, 2, 2), (2, 2, 4))
"""Requests of each kind in one batch: few, several, more than eight together."""
_TURN = st.sampled_from((1, 3, 33))
"""Tokens of a turn's reply: a few, or enough to fill a block."""
_SAID = ("And then?", "  First line.\n\nSecond line. ", "Go on. ")
"""What a template might trim."""


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
    sent_again(script, **keys)
    return None


def sent_again(script: Script, of: str, **keys: Any) -> None:
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
                       each=[{"unique": draw(drawn.TAIL)}], max_tokens=script.reply(draw(_TURN)),
                       **chat)  # fmt: skip
    script.must("counted", of=name)
    script.must("same_as_solo", of=name, **script.grade())
    if script.roomy and script.shares:
        script.must("turns_adopt", of=name)
    if chat:
        script.must("rerendered", of=name)
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


def chat(draw: Draw, script: Script) -> None:
    """A chat that grows, with contents that a template might render otherwise in a later turn."""
    if not (script.facts.renders and script.facts.has_chat and script.roomy and script.shares):
        return talk(draw, script)
    said: list[Json] = [{"role": "system", "content": [drawn.manual(draw, script)]}]
    names: list[str] = []
    for _ in range(3):
        said = [*said, {"role": "user", "content": [{"literal": draw(st.sampled_from(_SAID))}]}]
        names.append(script.step("send", script.name("turn"), messages=said, max_tokens=script.reply(2)))
        script.idle()
        said = [*said, {"role": "assistant", "content": [{"reply_of": names[-1]}]}]
    script.must("told_apart", of=names[0], others=names[1:])
    script.must("rerendered", of=names[0], others=names[1:])
    return None


def choices(draw: Draw, script: Script) -> None:
    """Several choices of one prompt, each as when it was asked for alone."""
    if "n" not in script.facts.can:
        return ask(draw, script)
    said: Json = {"prompt": [drawn.text(draw, script)], "max_tokens": script.reply(3)}
    drawn_at: Json = {"temperature": 1.0} if script.facts.child_seeds and draw(st.booleans()) else {}
    seeds = [{"sampling": {**drawn_at, "seed": 7 + i}} for i in range(3)]
    alone = script.name("alone")
    script.step("burst", alone, salt="private", each=seeds if drawn_at else seeds[:1], **said)
    script.idle()
    many = script.step("send", script.name("many"), sampling={**drawn_at, "seed": 7, "n": 3}, **said)
    script.must("choices_alone", of=many, alone=alone)
    script.idle()
    return None


def company(draw: Draw, script: Script) -> None:
    """Warm and cold requests in one batch, which end one after another."""
    system, mates = drawn.text(draw, script), draw(st.sampled_from(_MATES))
    script.step("send", script.name("seed"), prompt=[system, {"unique": 16}], max_tokens=script.reply(1))
    script.idle()
    warm, cold = [system, {"unique": 3, "seed": 1}], [{"unique": script.length(1, 3), "seed": 2}]
    each = [
        {"name": script.name("mate"), "requests": count, "prompt": prompt, "max_tokens": script.reply(tokens)}
        for count, prompt, tokens in zip(mates, (warm, cold, warm), (2, 4, 7), strict=True)
    ]
    name = script.step("burst", script.name("company"), each=each)
    script.general(name, len(each))
    script.idle()


def cold(draw: Draw, script: Script) -> None:
    """A text that nobody sent before, by several at once."""
    if "fresh" in script.texts or not _is_shared(script, {}, {}):
        return ask(draw, script)
    prompt = [script.text("fresh", draw(st.integers(1, 3)), draw(drawn.EDGES)), drawn.tail(draw)]
    count = draw(st.integers(2, 4))
    keys: Json = {"requests": count, "prompt": prompt, "max_tokens": script.reply(draw(drawn.REPLY))}
    name = script.name("cold")
    if script.facts.has_test:
        _gathered(script, name, keys)
    else:
        script.step("burst", name, **keys)
    script.general(name, count)
    script.must("computed_once", of=name)
    script.again.append(name)
    script.idle()
    return None


def twins(draw: Draw, script: Script) -> None:
    """Equal prompts of whole blocks at once: each computes the last one."""
    if "twin" in script.texts or not (script.roomy and script.shares):
        return ask(draw, script)
    twin = script.text("twin", draw(st.integers(1, 3)), 0)
    since = script.mark()
    name = script.step("burst", script.name("twins"), requests=draw(st.integers(2, 4)), prompt=[twin],
                       max_tokens=script.reply(2))  # fmt: skip
    until = script.mark()
    script.must("twins_once", of=name, since=since, until=until)
    return None


def rungs(draw: Draw, script: Script) -> None:
    """Prompts just below, at and just above the edge of a granule, each sent twice."""
    if not (script.roomy and script.shares and script.facts.granule):
        return ask(draw, script)
    granules = draw(st.integers(1, 3))
    each = [{"prompt": [{"unique": script.length(granules, more), "seed": 4}]} for more in (-1, 0, 1)]
    name = script.step("burst", script.name("edge"), max_tokens=script.reply(2), salt="private", each=each)
    script.idle()
    again = script.step("repeat", script.name("again"), of=name)
    script.idle()
    script.must("ladder", of=[name], again=[again])
    return None


def timing(draw: Draw, script: Script) -> None:
    """A stored prompt under another salt, as many tokens that nobody sent, and it under the same salt."""
    if not (script.facts.how == "engine" and script.roomy and script.shares and script.facts.has_salt):
        return stranger(draw, script)
    long = "long"
    script.texts.setdefault(long, {"tokens": "2C", "seed": 5})
    script.step("send", script.name("stored"), prompt=[long, drawn.tail(draw)], max_tokens=1)
    script.idle()
    across, unheard, same = script.name("across"), script.name("unheard"), script.name("same")
    often: Json = {"requests": 3, "max_tokens": 1}
    script.step("series", across, prompt=[long, {"unique": 8, "seed": 1}], salt="private", **often)
    script.step("series", unheard, prompt=[{"unique": "2C+8", "seed": 2}], salt="private", **often)
    script.step("series", same, prompt=[long, {"unique": 8, "seed": 3}], **often)
    script.idle()
    script.must("quiet_timing", across=across, control=unheard, same=same)
    return None


def one_shot(draw: Draw, script: Script) -> None:
    """Whole sequences, lent to one borrower at a time; a second time there are two that could be lent."""
    if "whole" in script.texts:
        return ask(draw, script)
    script.texts.setdefault("whole", {"tokens": 128, "seed": 3})
    script.step("send", script.name("seed"), prompt=["whole", drawn.tail(draw)], max_tokens=2)
    script.idle()
    name = script.step("burst", script.name("borrowers"), prompt=["whole", {"unique": 16, "seed": 1}],
                       requests=draw(st.integers(2, 4)), max_tokens=draw(st.integers(2, 8)))  # fmt: skip
    script.idle()
    again = script.step("send", script.name("again"), prompt=["whole", {"unique": 16, "seed": 2}])
    script.idle()
    script.must("one_shot", of=name, again=again)
    script.must("same_as_solo", of=name, **script.grade())
    return None

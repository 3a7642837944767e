"""Moves in which something ends before its time: clients that leave, forwards that fail, resets, new weights.

Knows those moves and what must hold of them. Does not know how moves become a workload (`strategies.py`), nor
how one is performed or judged.
"""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.explore import drawn
from conformance.explore.drawn import Draw
from conformance.explore.moves import ask
from conformance.explore.script import Json, Script

_LEAVES: tuple[Json, ...] = (
    {"phase": "decoding", "tokens": 1},
    {"phase": "first_token", "how": "fin"},
    {"phase": "decoding", "tokens": 1, "how": "abort"},
    {"phase": "last_step"},
)
_LONG = 64
"""Tokens of a reply that nobody waits for: enough to leave before its end, over a socket too."""


def leave(draw: Draw, script: Script) -> None:
    """Clients that walk away, beside others that stay."""
    said = [leave for leave in _LEAVES if script.facts.has_abort or leave.get("how") != "abort"]
    prompt = drawn.prompt(draw, script)
    # All find it stored: over a socket it is chance who comes first, and would store it for the others.
    script.step("send", script.name("seed"), prompt=prompt, max_tokens=script.reply(1))
    script.idle()
    left, stay = script.name("left"), script.name("stay")
    leaves = draw(st.sampled_from(said))
    entries: list[Json] = [
        {
            "name": left,
            "requests": draw(st.integers(1, 2)),
            "leave": leaves,
            "max_tokens": 8 if leaves["phase"] == "last_step" else _LONG,
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
    again = script.step("send", script.name("again"), prompt=prompt, salt=salt, max_tokens=2)
    script.is_whole = False
    script.must("retry_reuses", left=left, again=again)
    script.must("written_only", broken=left, again=again)
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


def leave_queue(draw: Draw, script: Script) -> None:
    """Clients that leave before their requests are looked at, though what they ask for is stored."""
    if not script.facts.has_test:
        return leave(draw, script)
    prompt = [drawn.text(draw, script), drawn.tail(draw)]
    script.step("send", script.name("seed"), prompt=prompt, max_tokens=1)
    script.idle()
    script.steps.append({"hold": "queued"})
    script.step("burst", script.name("left"), requests=draw(st.integers(2, 3)), prompt=prompt, max_tokens=8,
                leave={"phase": "queued"})  # fmt: skip
    script.steps.append({"hold": "off"})
    script.idle()
    script.is_whole = False
    return None


def reset(draw: Draw, script: Script) -> None:
    """The cache is emptied, and what stood there is asked for again."""
    if not script.facts.has_reset:
        return ask(draw, script)
    said: Json = {"prompt": [drawn.text(draw, script), drawn.tail(draw)], "max_tokens": script.reply(2)}
    first, warm = script.step("send", script.name("first"), **said), script.name("warm")
    script.idle()
    script.step("repeat", warm, of=first)
    script.idle()
    emptied = script.step("reset", script.name("emptied"))
    after = script.step("mark", script.name("m"))
    again = script.step("repeat", script.name("again"), of=first)
    script.idle()
    script.is_whole = False
    script.must("forgotten", of=again, warm=warm, reset=emptied, after=after)
    return None


def reset_decoding(draw: Draw, script: Script) -> None:
    """The cache is emptied under a request that decodes."""
    if not (script.facts.has_reset and script.facts.has_test and script.roomy):
        return reset(draw, script)
    text = drawn.text(draw, script)
    first = script.step("send", script.name("first"), prompt=[text, drawn.tail(draw)], max_tokens=2)
    script.idle()
    warm = script.step("repeat", script.name("warm"), of=first)
    script.idle()
    long = script.step("start", script.name("long"), prompt=[text, {"unique": 3, "seed": 1}], max_tokens=24)
    script.steps.append({"when": {"request": long, "phase": "decoding", "tokens": draw(st.integers(2, 4))}})
    emptied = script.step("reset", script.name("emptied"))
    again = script.step("repeat", script.name("again"), of=first)
    script.steps.append({"join": long})
    script.idle()
    script.is_whole = False
    script.must("reset_meant", reset=emptied, running=long, warm=warm, of=again)
    return None


def reset_prefilling(draw: Draw, script: Script) -> None:
    """The cache is emptied in the middle of a prefill, whose rows belong to before."""
    if not (script.facts.has_reset and script.facts.has_test and script.roomy and script.facts.chunk):
        return reset(draw, script)
    script.steps.append({"hold": "prefilling", "after": script.facts.chunk})
    prompt = [{"unique": f"2C+{draw(st.integers(1, 40))}", "seed": draw(drawn.SEED)}]
    begun = script.step("start", script.name("begun"), prompt=prompt, max_tokens=2)
    script.steps.append({"when": {"request": begun, "phase": "prefilling", "fraction": 0.3}})
    emptied = script.step("reset", script.name("emptied"))
    script.steps += [{"hold": "off"}, {"join": begun}]
    script.idle()
    again = script.step("repeat", script.name("again"), of=begun)
    script.idle()
    control = script.step("repeat", script.name("control"), of=begun)
    script.idle()
    script.is_whole = False
    script.must("nothing_carried", reset=emptied, begun=begun, of=again, control=control)
    return None


def reload(draw: Draw, script: Script) -> None:
    """New weights under an adapter's name, which no other move uses."""
    adapters = script.facts.adapters
    if not (
        script.facts.can_reload and script.roomy and len(adapters) > 1 and "reload" not in str(script.steps)
    ):
        return ask(draw, script)
    old = script.step("send", script.name("old"), prompt=[drawn.text(draw, script), drawn.tail(draw)],
                      max_tokens=script.reply(2), adapter=adapters[-1])  # fmt: skip
    script.idle()
    warm = script.step("repeat", script.name("warm"), of=old)
    script.idle()
    renewed = script.step("reload", script.name("renewed"), adapter=adapters[-1])
    new = script.step("repeat", script.name("new"), of=old)
    script.idle()
    script.must("renewed", of=new, old=old, warm=warm, reload=renewed)
    return None

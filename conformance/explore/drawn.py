"""What one request of a made-up workload says: its prompt, whose it is, how its tokens are chosen.

Knows prompt parts with lengths around the edges of granules, identities and sampling. Does not know steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from conformance.explore.script import Json, Script

Draw = Callable[[st.SearchStrategy[Any]], Any]

EDGES = st.sampled_from((0, 1, -1, 16))
"""Tokens by which a length misses the edge of a granule."""
TAIL = st.sampled_from((3, 16, 1, 33))
SEED = st.integers(0, 3)
REPLY = st.sampled_from((1, 2, 5))
_SAMPLINGS: tuple[Json, ...] = (
    {"temperature": 0.8, "seed": 7},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 1.0},
    {"n": 2},
    {"temperature": 0.8, "seed": 3, "n": 2},
)


# ---- prompts


def text(draw: Draw, script: Script) -> str:
    """One of two texts; its length is drawn once."""
    name = draw(st.sampled_from(("system", "notes")))
    if name in script.texts:
        return str(name)
    return script.text(name, draw(st.integers(1, 3)), draw(EDGES))


def manual(draw: Draw, script: Script) -> str:
    """A text of many blocks, longer than a chunk."""
    return script.text("manual", 9, draw(EDGES))


def prompt(draw: Draw, script: Script) -> list[Any]:
    """Mostly what shares something with other prompts."""
    make = draw(st.sampled_from((_tailed, _bare, _headed, _changed, _behind, _repeated, _unique, _long)))
    parts: list[Any] = make(draw, script)
    return parts


def tail(draw: Draw) -> Json:
    return {"unique": draw(TAIL), "seed": draw(SEED)}


def place(draw: Draw, count: int) -> int:
    """One of so many places, counted from 0.

    No number of a hundred or more is drawn: some of those Hypothesis takes from the source of whatever
    modules a process has loaded, and one seed would make up other workloads in another process.
    """
    return int(draw(st.integers(0, min(count, 100) - 1))) * max(count, 100) // 100


def _tailed(draw: Draw, script: Script) -> list[Any]:
    return [text(draw, script), tail(draw)]


def _long(draw: Draw, script: Script) -> list[Any]:
    return [manual(draw, script), tail(draw)] if script.roomy else _tailed(draw, script)


def _bare(draw: Draw, script: Script) -> list[Any]:
    return [text(draw, script)]


def _headed(draw: Draw, script: Script) -> list[Any]:
    """Part of a text: up to its shortest length, so that it is always there."""
    name = text(draw, script)
    return [{"head_of": name, "tokens": 1 + place(draw, _shortest(script, name))}, tail(draw)]


def _changed(draw: Draw, script: Script) -> list[Any]:
    name = text(draw, script)
    return [{"changed": name, "at": place(draw, _shortest(script, name))}, tail(draw)]


def _behind(draw: Draw, script: Script) -> list[Any]:
    """A text behind another parent, block by block where it was."""
    return [{"unique": script.length(1), "seed": draw(SEED)}, text(draw, script), tail(draw)]


def _unique(draw: Draw, script: Script) -> list[Any]:
    return [{"unique": script.length(draw(st.integers(1, 3)), draw(EDGES)), "seed": draw(SEED)}]


def _repeated(draw: Draw, script: Script) -> list[Any]:
    if not script.singles:
        return _tailed(draw, script)
    again: list[Any] = [{"repeat_of": draw(st.sampled_from(script.singles))}]
    return again if draw(st.booleans()) else [*again, tail(draw)]


def _shortest(script: Script, name: str) -> int:
    """Tokens that the text has at least, whatever the target."""
    said = script.texts[name]["tokens"]
    if isinstance(said, int):
        return said
    granules, _, more = said.partition("G")
    return int(granules) * (script.facts.granule or 1) + int(more or 0)


# ---- identities and options


def identity(draw: Draw, script: Script) -> Json:
    """Salt and adapter: mostly those of all others."""
    adapters = script.facts.adapters[:1]
    choices: list[Json] = [{}, {}, {}, {"salt": "tenant"}, {"salt": "private"}]
    choices += [{"adapter": name} for name in adapters]
    if adapters and script.facts.has_salt:
        choices += [{"adapter": adapters[0], "salt": "none"}, {"salt": f"adapter:{adapters[0]}"}]
    chosen: Json = draw(st.sampled_from(choices))
    return chosen


def options(draw: Draw, script: Script) -> Json:
    """Sampling, where the target takes it; mostly none."""
    known = [said for said in _SAMPLINGS if set(said) <= set(script.facts.can)]
    chosen = draw(st.sampled_from([{}] * max(1, len(known)) + known))
    return {"sampling": chosen} if chosen else {}

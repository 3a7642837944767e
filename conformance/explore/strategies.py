"""Workloads made up by Hypothesis: a few moves, one after another, on one target.

Knows which moves there are in which launch profile, and what they need a target to bear. Does not know what a
move does (`moves.py`, `endings.py`, `pressing.py`), nor how a workload is performed or judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from hypothesis import strategies as st

from conformance.explore.drawn import Draw
from conformance.explore.endings import (
    fail,
    leave,
    leave_queue,
    reload,
    reset,
    reset_decoding,
    reset_prefilling,
    retry,
    stop_work,
)
from conformance.explore.moves import (
    ask,
    chat,
    choices,
    cold,
    company,
    count,
    declined,
    one_shot,
    refuse,
    repeat,
    rungs,
    stop,
    stored,
    stranger,
    talk,
    timing,
    twins,
)
from conformance.explore.pressing import chain, hot, outlast, overflow, queue, recycle, too_long, traffic
from conformance.explore.script import Json, Script
from conformance.history import Facts
from conformance.permission import PERMISSIONS

Move = Callable[[Draw, Script], None]

MOST_MOVES = 4
_ANYWHERE: tuple[Move, ...] = (
    ask, repeat, ask, stored, repeat, leave, talk, stop, declined, count, traffic, stranger, fail, refuse,
    retry, reset, stop_work, company, company, choices, chat, twins, timing, leave_queue, reload,
    reset_decoding, reset_prefilling, rungs, cold, chat, talk, fail, leave_queue,
)  # fmt: skip
MOVES: dict[str, tuple[Move, ...]] = {
    "default": _ANYWHERE,
    "collide": (ask, repeat, stored),
    "tight": (ask, repeat, traffic, queue, leave, queue, queue, too_long, hot, hot, chain, recycle, outlast),
    "overcommit": (overflow, ask, repeat),
    "dense": (one_shot, ask, repeat),
}
"""What is done in each launch profile; one that the target lacks is never drawn."""
_OFTEN = ("default",) * 6 + ("tight", "collide", "tight", "overcommit", "tight", "dense")


_DISCONNECTS = (leave, stop_work, retry, leave_queue)
_RESETS = (reset, reset_decoding, reset_prefilling)
_NEEDS: dict[Move, str] = dict.fromkeys(_DISCONNECTS, "disconnect") | dict.fromkeys(_RESETS, "reset")
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

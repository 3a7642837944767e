"""What a server does with stored prompts, measured: granule, shortest prefix, and what it keeps apart.

Knows how to find each from cached counts, under private salts and with at most 40 requests. Does not know
specs. A session measures only the granule, and only where the dialect declares none; everything is for
`python -m conformance calibrate`, which also says what contradicts the declaration.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from conformance import probe
from conformance.heads import Look, contradicted, is_exact, look
from conformance.history import Facts, Outcome, PlannedRequest

if TYPE_CHECKING:
    from conformance.target import Target

_STORED = 1000
_HEADS = (909, 737, 653, 588, 523, 462, 401, 340, 263, 212, 149, 98)
"""Tokens: for every granule up to 256, what they floor to has it as its greatest common divisor."""
_LONG = 4700
_LONG_HEADS = (4500, 3300, 2100)
"""The same for granules of 1,024, 2,048 and 4,096."""
_SHORT_HEADS = (64, 48, 32, 24, 16, 12, 8, 4, 2, 1)
_TURN = 200
_LONGEST_REPLY = 256


@dataclass
class Calibration:
    """What was measured; None is what could not be found out, and `notes` say why."""

    granule: int | None = None
    min_prefix: int | None = None
    """Tokens of the shortest prefix that is adopted where more than one granule is needed, else 0."""
    generated_reusable: bool | None = None
    salt_isolates: bool | None = None
    reset_empties: bool | None = None
    requests: int = 0
    contradictions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def granule(target: Target, facts: Facts) -> Facts:
    """The facts with a measured granule where none is declared and counts show one. At most 17 requests."""
    if facts.granule is not None or not facts.reports_cached:
        return facts
    step = _looked(target).step
    return facts.model_copy(update={"granule": step, "sharing": _sharing(facts)}) if step else facts


def _sharing(facts: Facts) -> str:
    return "all" if facts.sharing == "unknown" else facts.sharing


def _looked(target: Target) -> Look:
    """Heads of a prompt; of a much longer one when nothing of the first was found."""
    seen = look(target, _STORED, _HEADS, seed=2)
    return seen if seen.hits else look(target, _LONG, _LONG_HEADS, seed=3)


def calibrate(target: Target) -> Calibration:
    """Everything, compared with what the dialect declares. At most 40 requests, after those of the probe."""
    if not target.facts.reports_cached:
        need = target.dialect.needs.get("reports_cached")
        return Calibration(notes=["no cached tokens are reported" + (f"; it takes {need}" if need else "")])
    found = Calibration()
    asker = _Asker(target, found)
    asker.lengths()
    if found.granule:
        asker.turn()
    declared = probe.declared(target, target.options.how)
    found.contradictions = _contradictions(declared, target, found, asker.seen)
    return found


class _Asker:
    """Fills a calibration, counting what it sends."""

    def __init__(self, target: Target, found: Calibration) -> None:
        self._target, self._found = target, found
        self.seen = Look((), ())

    def lengths(self) -> None:
        """Granule and shortest prefix."""
        self.seen = _looked(self._target)
        self._found.requests += 1 + len(_HEADS)
        if self.seen.heads == _LONG_HEADS:
            self._found.requests += 1 + len(_LONG_HEADS)
        self._found.granule = self.seen.step
        if not self.seen.hits:
            self._found.notes.append("nothing that was stored was ever found: is caching switched off?")
        elif self.seen.missed:
            self._found.notes.append("heads of one stored prompt were found only sometimes: several caches?")
        else:
            self._found.min_prefix = self._shortest()

    def _shortest(self) -> int:
        """The shortest count that is ever given, or 0 when that is one granule."""
        step, shortest = self.seen.step or 1, min(self.seen.hits)
        heads = [head for head in _SHORT_HEADS if step <= head < shortest]
        short = look(self._target, _STORED, heads, seed=4)
        self._found.requests += 1 + len(heads)
        least = min([*self.seen.hits.values(), *short.hits.values()])
        return 0 if least <= step else least

    def turn(self) -> None:
        """A prompt with a reply, then both again: are generated tokens found, and do salt and reset part?"""
        step = self._found.granule or 1
        reply = max(32, 2 * step)
        if reply > _LONGEST_REPLY:
            self._found.notes.append(f"generated tokens: a granule of {step} needs too long a reply")
            return
        first = probe.trial(self._target, _TURN, seed=5, max_tokens=reply)
        outcome = self._sent(first)
        time.sleep(self._target.facts.settle)
        if (extended := _extended(self._target, outcome)) is not None:
            self._found.generated_reusable = _over(self._target, self._sent(extended), outcome, step)
        if self._found.generated_reusable is None:
            self._found.notes.append("generated tokens: no reply that could be sent back whole")
        self._apart(first)

    def _apart(self, stored: PlannedRequest) -> None:
        """The same prompt under another salt, and after a reset, must not be found."""
        again = self._sent(stored).cached
        if not again:
            self._found.notes.append("salt and reset: a repeat was not found, so a miss would prove nothing")
            return
        if self._target.facts.has_salt:
            other = self._sent(stored.model_copy(update={"salt": f"{stored.salt}-other"}))
            self._found.salt_isolates = _is_miss(other.cached, again)
        if self._target.facts.has_reset and self._target.reset()["done"]:
            self._found.reset_empties = _is_miss(self._sent(stored).cached, again)

    def _sent(self, plan: PlannedRequest) -> Outcome:
        self._found.requests += 1
        return self._target.send(plan)


def _is_miss(cached: int | None, before: int) -> bool | None:
    """None when it cannot be told; a chat template's head may be shared, so a little is still a miss."""
    return None if cached is None else cached < before / 2


def _extended(target: Target, outcome: Outcome) -> PlannedRequest | None:
    """Prompt, reply and an end, as a next turn would send them; None where the reply cannot go back."""
    plan, end = outcome.plan, probe.trial(target, 24, seed=6)
    if plan.prompt_ids is not None and end.prompt_ids is not None:
        if not outcome.token_ids:
            return None
        return plan.model_copy(update={"prompt_ids": plan.prompt_ids + outcome.token_ids + end.prompt_ids})
    if target.dialect.ask.form == "chat" or not outcome.text:
        return None
    return plan.model_copy(update={"prompt_text": f"{plan.prompt_text}{outcome.text} {end.prompt_text}"})


def _over(target: Target, then: Outcome, first: Outcome, step: int) -> bool | None:
    """Whether more was found than the first prompt; None where that cannot be told."""
    prompt = len(first.plan.prompt_ids or ()) or first.prompt_tokens or 0
    reply = len(first.token_ids or ()) or first.completion_tokens or 0
    prompt_end = prompt + target.facts.lcp_slack
    # A granule must end within the reply, and something must have been found.
    if not then.cached or (prompt + reply - 1) // step * step <= prompt_end:
        return None
    return then.cached > prompt_end


def _contradictions(declared: Facts, target: Target, found: Calibration, seen: Look) -> list[str]:
    """What was measured and is not as declared, each in words."""
    said = [
        contradicted(declared.granule, seen, declared.partial_reuse, is_exact(target)),
        _differs("shortest prefix", declared.min_prefix, found.min_prefix, declared.granule or 1),
        _opposed("generated tokens reusable", declared.generated_reusable, found.generated_reusable),
        _opposed("the salt isolates", declared.has_salt or None, found.salt_isolates),
        _opposed("a reset empties the cache", target.facts.has_reset or None, found.reset_empties),
    ]
    return [one for one in said if one]


def _differs(what: str, declared: int, measured: int | None, step: int) -> str | None:
    """Counts below a declared least one, or none below a higher one that nobody declared."""
    if measured is None or (declared <= step and measured == 0) or measured == declared:
        return None
    # Only some lengths were tried, so that a measured least count may lie up to one granule higher.
    if declared and 0 <= measured - declared < max(step, declared):
        return None
    return f"{what} of {declared} tokens declared, {measured or step} measured"


def _opposed(what: str, declared: bool | None, measured: bool | None) -> str | None:
    if declared is None or measured is None or declared == measured:
        return None
    return f"{what}: declared {_word(declared)}, measured {_word(measured)}"


def _word(value: bool) -> str:
    return "yes" if value else "no"

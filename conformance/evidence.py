"""What a requirement needs to see of a server, and what a dialect says that there is to see.

Knows requirements by the evidence without which no case of theirs can be judged, and dialects as declared.
Does not know a running server: its probe (`probe.py`) may find less, and a judge has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.dialect import Dialect
from conformance.requirements import Requirement

_BY_AREA: Mapping[str, frozenset[str]] = {
    "adopt": frozenset({"cached"}),
    "store": frozenset(),
    "out": frozenset(),
    "key": frozenset({"cached"}),
    "life": frozenset(),
    "count": frozenset({"cached"}),
    "evict": frozenset(),
    "reset": frozenset({"reset"}),
    "foot": frozenset(),
    "tmpl": frozenset({"cached"}),
}

_BY_ID: Mapping[str, frozenset[str]] = {
    "store/1": frozenset({"live"}),
    "store/2": frozenset({"cached"}),
    "store/3": frozenset({"cached", "referenced"}),
    "store/4": frozenset({"live"}),
    "store/8": frozenset({"index_entries"}),
    "store/9": frozenset({"live"}),
    "out/1": frozenset({"cached"}),
    "out/7": frozenset({"logprobs"}),
    "key/5": frozenset({"salt"}),
    "key/7": frozenset({"salt"}),
    "life/1": frozenset({"running"}),
    "life/4": frozenset({"computed_tokens"}),
    "count/3": frozenset({"cached", "hits_tokens"}),
    "count/4": frozenset({"free", "total"}),
    "count/6": frozenset({"preemptions"}),
    "evict/1": frozenset({"cached"}),
    "evict/2": frozenset({"cached"}),
    "evict/4": frozenset({"cached"}),
    "evict/7": frozenset({"preemptions"}),
    "foot/4": frozenset({"reset"}),
}

_CALLED = {
    "cached": "cached tokens",
    "reset": "no way to empty its cache",
    "salt": "no field that keeps caches apart",
    "logprobs": "logprobs",
}

_FACTS = {"cached": "reports_cached", "reset": "has_reset"}
"""The fact of the dialect's `needs` that evidence goes by; gauges are `has_stats`."""


def needs(requirement: Requirement) -> frozenset[str]:
    """Names of evidence: cached, reset, salt, logprobs, or a gauge."""
    return _BY_ID.get(requirement.id, _BY_AREA[requirement.area])


def shown(dialect: Dialect) -> frozenset[str]:
    """What the dialect declares that there is to see."""
    declared = {
        "cached": bool(dialect.answer.cached),
        "reset": dialect.reset is not None,
        "salt": dialect.ask.salt is not None,
        "logprobs": bool(dialect.ask.logprobs),
    }
    gauges = {gauge for stats in dialect.stats for gauge in stats.values}
    return frozenset(name for name, there in declared.items() if there) | gauges


def outlook(requirement: Requirement, dialect: Dialect) -> str:
    """What is expected of such a server: claimed, not claimed, or unobservable; with the reason."""
    claim = dialect.claims.get(requirement.id)
    if claim is None:
        return _expected(requirement, dialect)
    reason = claim.reason + (f" ({claim.link})" if claim.link else "")
    if not claim.when:
        return f"not claimed: {reason}"
    where = ", ".join(f"{fact} is {value}" for fact, value in claim.when.items())
    return f"{_expected(requirement, dialect)}; not claimed where {where}: {reason}"


def _expected(requirement: Requirement, dialect: Dialect) -> str:
    lacking = sorted(needs(requirement) - shown(dialect))
    if lacking:
        return f"unobservable: {', '.join(map(_missing, lacking))}"
    return "; needs ".join(["claimed", *_conditions(requirement, dialect)])


def _missing(name: str) -> str:
    called = _CALLED.get(name, f"gauge {name}")
    return called if called.startswith("no ") else f"no {called}"


def _conditions(requirement: Requirement, dialect: Dialect) -> list[str]:
    """How the server must be started for the evidence to be there."""
    facts = {_FACTS.get(name, "has_stats") for name in needs(requirement) - {"salt", "logprobs"}}
    return [said for fact, said in dialect.needs.items() if fact in facts]

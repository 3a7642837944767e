"""A workload in the making: steps as a spec file has them, and what must hold of them on any lawful server.

Knows which judge may be asked about which steps: laws that hold whatever else the workload does. Does not
know how workloads are made up (`strategies.py`) or what a judge does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.history import Facts
from conformance.judges import JUDGES
from conformance.spec import Expect, Spec

Json = dict[str, Any]
FOUND = "explored/found"
PREEMPTS = ("overcommit", "preempting")
"""Launch profiles in which a request may have to compute again what it had."""
_PLAIN_UNIT = 64
_DECIDED = 16
"""Tokens that a reply needs at grade decided (out/1)."""


@dataclass
class Script:
    """A workload for one target, step by step. `profile` is how that must be started."""

    facts: Facts
    profile: str = "default"
    texts: dict[str, Json] = field(default_factory=dict)
    steps: list[Json] = field(default_factory=list)
    expect: list[Json] = field(default_factory=list)
    singles: list[str] = field(default_factory=list)
    """Steps of one request that ended well, whose prompt can be sent again."""
    again: list[str] = field(default_factory=list)
    """Steps that can be repeated as they are."""
    is_whole: bool = True
    """Whether every request ended well, and nothing was thrown away: what adds up over a workload does."""
    _names: int = 0

    @property
    def roomy(self) -> bool:
        """Whether what was stored is certainly found: the pool is larger than all that is made up here."""
        return self.profile == "default"

    @property
    def shares(self) -> bool:
        return self.facts.sharing == "all" and self.profile != "unshared"

    def name(self, word: str) -> str:
        self._names += 1
        return f"{word}{self._names}"

    def length(self, granules: int, more: int = 0) -> int | str:
        """So many granules of the target and a few tokens; plain tokens where it tells no granule."""
        if self.facts.granule is None:
            return max(1, granules * _PLAIN_UNIT + more)
        return f"{granules}G{more:+d}" if more else f"{granules}G"

    def text(self, name: str, granules: int, more: int) -> str:
        """The named text; of the length that it was first asked for with."""
        self.texts.setdefault(name, {"tokens": self.length(granules, more), "seed": 1 + len(name) * 7})
        return name

    def step(self, kind: str, name: str, **keys: Any) -> str:
        self.steps.append({kind: name, **keys})
        return name

    def idle(self) -> None:
        """Nothing is in flight; said once."""
        if not self.steps or self.steps[-1] != {"wait": "idle"}:
            self.steps.append({"wait": "idle"})

    def mark(self) -> str:
        """A reading while nothing runs; the same one where nothing happened since the last."""
        if self.steps and "mark" in self.steps[-1]:
            return str(self.steps[-1]["mark"])
        self.idle()
        return self.step("mark", self.name("m"))

    def must(self, judge: str, requirement: str | None = None, **args: Any) -> None:
        """One expectation, with a name of its own."""
        said = {**args, **({"as": requirement} if requirement else {})}
        same = sum(judge in entry for entry in self.expect)
        self.expect.append({judge: {**said, **({"id": f"{judge}-{same + 1}"} if same else {})}})

    # What holds of any requests that ended well

    def general(self, name: str, count: int, sampling: Mapping[str, Any] | None = None) -> None:
        """Counts are possible, replies are those of the same request alone, logprobs are true."""
        sampling = sampling or {}
        self.must("counted", of=name)
        if self.facts.sharing == "all" and self.roomy and not sampling.get("prompt_logprobs"):
            self.must("lawful", of=name)
        if sampling:
            self.must("chosen_alike", of=name, reuse=False)
        else:
            self.must("same_as_solo", of=name, **self.grade())
        if count > 1:
            self.must("own_content", of=name)
        self.must("logprobs_true", of=name)

    def grade(self) -> Json:
        """Said where it is exact: a short reply shows something then."""
        return {} if self.facts.grade == "decided" else {"grade": self.facts.grade}

    def reply(self, tokens: int) -> int:
        """A length of a reply that shows something on this target."""
        return max(tokens, _DECIDED) if self.facts.grade == "decided" else tokens

    def whole(self, start: str, end: str) -> None:
        """What holds of all of it, from the first mark to the last."""
        self.must("released", before=start, after=end)
        self.must("balanced", at=end)
        self.must("never_fall")
        if self.is_whole and self.facts.how == "engine":
            self.must(
                "hits_counted", "count/6" if self.profile in PREEMPTS else "count/3", since=start, until=end
            )
            self.must("accounted", since=start, until=end)
            if self.again and self.profile not in PREEMPTS:
                self.must("queued_truly", of=self.again[0], since=start, until=end)

    # A spec of it

    def data(self, id: str = FOUND) -> Json:
        """As a file has it."""
        serve = {} if self.profile == "default" else {"serve": {"profile": self.profile, "fresh": True}}
        return {
            "spec": 1,
            "id": id,
            "title": "A workload that was made up at random is served by the law",
            "proves": requirements(self.expect),
            **serve,
            **({"texts": self.texts} if self.texts else {}),
            "steps": self.steps,
            "expect": self.expect,
        }


def requirements(expect: list[Json]) -> list[str]:
    """The ids that expectations judge, each once."""
    entries = [(judge, args) for entry in expect for judge, args in entry.items()]
    return list(dict.fromkeys(args.get("as", JUDGES[judge].requirement) for judge, args in entries))


def spec_of(data: Json) -> Spec:
    """The spec that a file with this content is."""
    expects = [_expect(judge, args) for entry in data["expect"] for judge, args in entry.items()]
    return Spec.model_validate({**data, "expect": expects})


def _expect(judge: str, said: Json) -> Expect:
    args = {key: value for key, value in said.items() if key not in ("as", "id")}
    requirement = said.get("as", JUDGES[judge].requirement)
    return Expect(judge=judge, args=args, requirement=requirement, id=said.get("id", judge))

"""A family of servers as data: `dialects/*.yaml`, and how to read values out of what servers answer.

Knows the form of a dialect file, paths into JSON, and Prometheus text. Does not know how to reach a
server (`target.py`) nor what follows from the facts (`judges/`). Adding a server is one file and no code.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from conformance.history import Facts, NotClaimed

FOLDER = Path(__file__).parent / "dialects"

Gauge = Literal[
    "live", "referenced", "cached_idle", "free", "total", "peak_live", "running", "waiting", "sequence",
    "bytes_in_use", "hits_tokens", "computed_tokens", "evictions", "preemptions", "adopted_requests",
    "rejected_requests", "missed_requests", "generated_tokens", "index_entries", "bytes_budget",
    "bytes_reserved",
]  # fmt: skip
"""The harness's own names for what a server counts."""
Sampled = Literal[
    "temperature", "seed", "top_p", "n", "stop", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "min_tokens", "prompt_logprobs",
]  # fmt: skip
"""The language's names for sampling parameters."""
BLOCK_GAUGES = frozenset({"live", "referenced", "cached_idle", "free", "total", "peak_live"})
GAUGES = frozenset(get_args(Gauge))

JsonPath = Annotated[str, Field(description="a.b[0].c; [*] is every element")]


class DialectError(Exception):
    """A dialect file that cannot be used; the message names the file and the place in it."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(Strict):
    """One value of the server: a path in a JSON answer, or a metric (or one of its labels)."""

    get: str
    path: JsonPath | None = None
    metric: str | None = None
    label: str | None = None
    map: dict[str, Any] = {}
    """Server's word -> ours; a word that is not listed counts as not said."""
    plus: int = 0


Value = bool | int | float | str | Source


class Check(Strict):
    """One sign by which a server is known: what a GET gives, or the host that it is reached under."""

    get: str | None = None
    path: JsonPath | None = None
    header: str | None = None
    text: str | None = None
    """Words that the page, whatever it is, contains."""
    equals: str | None = None
    starts: str | None = None
    host: str | None = None
    """A hosted service: this host or one below it. Nothing is asked."""

    @model_validator(mode="after")
    def _one_sign(self) -> Check:
        if (self.get is None) == (self.host is None):
            raise ValueError("a sign is either a page (get) or a host")
        ways = [self.path, self.header, self.text]
        if self.get is not None and sum(way is not None for way in ways) != 1:
            raise ValueError("a page is looked at in one way: path, header or text")
        return self


class Tokenize(Strict):
    """The route that turns text into ids, without tokens of its own around them."""

    post: str = "/tokenize"
    field: str = "prompt"
    send: dict[str, Any] = {}
    ids: JsonPath = "tokens"


class Ask(Strict):
    """What a completion request of this server carries. Fields that are not named here are never sent."""

    route: str = "/v1/completions"
    form: Literal["completion", "chat"] = "completion"
    """`chat`: a plain prompt goes as one user message, for servers that report cached tokens only there."""
    ids: bool = False
    """Whether `prompt` may be a list of token ids."""
    max_tokens: str = "max_tokens"
    """The field that bounds the reply."""
    always: dict[str, Any] = {}
    stream: dict[str, Any] = {"stream_options": {"include_usage": True}}
    """Goes over all others, so that null takes back what streams are not to be asked for."""
    logprobs: dict[str, Any] = {}
    salt: str | None = None
    """The field that keeps caches apart."""
    cold: dict[str, Any] = {}
    """Fields that make one request compute everything itself, where there is no salt."""
    model: str | None = None
    """The model to ask for where the server's list of models does not name it."""
    chat: str | None = "/v1/chat/completions"
    chat_logprobs: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    sampling: list[Sampled] = ["temperature", "seed", "stop"]
    """Sampling parameters that the server is known to take, under these names."""
    adapters: dict[str, str] = {}
    """A name of the language -> the model that stands for it; `{model}` is the model's own name."""
    id: str | None = None
    """The field in which a client names its request, where it can: an abort needs it before any reply."""


class Answer(Strict):
    """Where a completion says things. Streamed and not streamed share the paths."""

    ids: JsonPath | None = None
    cached: list[JsonPath] = ["usage.prompt_tokens_details.cached_tokens"]
    """In order; the first that is there counts."""
    absent_is_zero: bool = False
    """Whether a usage without such a count says that nothing was cached. Elsewhere absent is not 0."""
    trace: JsonPath | None = None
    rendered: list[JsonPath] = []
    """Where the ids of the prompt as the server read it stand."""
    prompt_logprobs: JsonPath = "choices[0].prompt_logprobs"
    version: JsonPath | None = None
    """Where a reply tells the server's version, up to the first `-`, when no page does."""


class Reading(Strict):
    """One gauge: a JSON path or a metric name, brought to blocks where the server counts otherwise.

    Several are summed, as far as they are there.
    """

    of: str | list[str]
    times: Literal["pool_blocks"] | None = None
    unit: Literal["blocks", "tokens", "bytes"] = "blocks"


class Stats(Strict):
    """One route that reports counters, and what they are called there."""

    get: str
    format: Literal["json", "prometheus"] = "json"
    values: dict[Gauge, str | Reading]


class Action(Strict):
    """A route that does something: reset the cache, mark the peak gauge."""

    method: Literal["POST", "GET", "DELETE"] = "POST"
    route: str
    path: JsonPath | None = None
    equals: Any = None
    """The answer at `path` that means done; without a path any 200 does."""
    send: dict[str, Any] = {}
    """The body; a value that is `{word}` is what the case says for it."""
    words: dict[str, Any] = {}
    """What the case says -> what this server calls it."""


class Hooks(Strict):
    """What a test build lets a harness do."""

    hold: Action
    """`{phase}` (queued, prefilling, decoding or off) and `{after}`, tokens."""
    fail: Action
    """`{forward}` (prefill or decode) and `{after}`, forwards."""
    overwrite: Action
    """`{block}`."""
    block: JsonPath
    """Where a trace tells a block that the request adopted."""


class Claim(NotClaimed):
    """What such a server does not do by design, or does not do where it tells certain facts."""

    when: dict[str, Any] = Field(default={})
    """Fact -> the value that it must have; empty: always."""

    @field_validator("when")
    @classmethod
    def _known_facts(cls, when: dict[str, Any]) -> dict[str, Any]:
        return _known(when)

    def is_about(self, facts: Facts) -> bool:
        return all(getattr(facts, name) == value for name, value in self.when.items())


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(facts) - set(Facts.model_fields))
    if unknown:
        raise ValueError(f"no such fact: {', '.join(unknown)}")
    return facts


class Profile(Strict):
    """A way to launch the server: flags that are added to the command."""

    args: list[str]
    about: str = ""


class Dialect(Strict):
    """One server family. See the files beside this module for examples."""

    dialect: str
    name: str
    order: int
    """Families are tried from the lowest order up, so that a more specific one comes first."""
    recognise: list[Check] = []
    """All must hold. Empty: fits any server (`generic`)."""
    version: Source | None = None
    ready: str = "/health"
    """The route that answers 200 once the server is up."""
    tokenize: Tokenize | None = None
    ask: Ask = Ask()
    answer: Answer = Answer()
    facts: dict[str, Value] = {}
    stats: list[Stats] = []
    reset: Action | None = None
    mark: Action | None = None
    reload: Action | None = None
    """`{adapter}` gets other weights; `{number}` counts the reloads: from 1, on an endpoint from anywhere."""
    abort: Action | None = None
    """Ends the request `{id}`."""
    test: Hooks | None = None
    poke: bool = False
    """Whether gauges rest until the next step, so that a small request must come before a reading."""
    profiles: dict[str, Profile] = {"default": Profile(args=[])}
    cold_profile: str | None = None
    """The profile in which nothing is reused: for solo runs where requests cannot be kept apart."""
    claims: dict[str, Claim] = {}
    needs: dict[str, str] = {}
    """Fact -> what the server must be started with (or asked for) so that it shows."""
    notes: list[str] = []

    @field_validator("facts", "needs")
    @classmethod
    def _known_facts(cls, facts: dict[str, Any]) -> dict[str, Any]:
        return _known(facts)

    def not_claimed(self, facts: Facts) -> dict[str, NotClaimed]:
        """What a server with these facts does not claim, by requirement."""
        claims = {name: claim for name, claim in self.claims.items() if claim.is_about(facts)}
        return {name: NotClaimed(reason=claim.reason, link=claim.link) for name, claim in claims.items()}


def load(path: Path) -> Dialect:
    """One dialect file; DialectError names the place when it is wrong."""
    try:
        data = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        return Dialect.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise DialectError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (YAMLError, OSError) as error:
        raise DialectError(f"{path}: {error}") from None


@cache
def dialects() -> tuple[Dialect, ...]:
    """All that are shipped, in the order in which they are tried."""
    return tuple(sorted((load(path) for path in FOLDER.glob("*.yaml")), key=lambda known: known.order))


_STEP = re.compile(r"([^.\[\]]+)|\[(\d+|\*)\]")


def pick(data: Any, path: str) -> Any:
    """The value at a path such as `usage.details[0].cached`; None when any part of it is absent.

    `[*]` gives the list of what the rest of the path finds in every element.
    """
    for match in _STEP.finditer(path):
        key, index = match.groups()
        if index == "*":
            rest = path[match.end() :].lstrip(".")
            return _each(data, rest)
        data = _step(data, key, index)
    return data


def _each(data: Any, rest: str) -> list[Any] | None:
    if not isinstance(data, list):
        return None
    return [found for item in data if (found := pick(item, rest)) is not None]


def _step(data: Any, key: str | None, index: str | None) -> Any:
    if key is not None:
        return data.get(key) if isinstance(data, dict) else None
    at = int(index or 0)
    return data[at] if isinstance(data, list) and at < len(data) else None


def first(data: Any, paths: list[str]) -> Any:
    """The first value that is there (0 is, None is not)."""
    return next((value for path in paths if (value := pick(data, path)) is not None), None)


def as_json(text: str) -> Any:
    """The parsed text, or None for what is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # the latter for brackets a thousand deep
        return None


Metrics = dict[str, list[tuple[dict[str, str], float]]]


def metrics(text: str, names: frozenset[str]) -> Metrics:
    """The named series of a Prometheus page: name -> [(labels, value)]; a page that is none gives {}."""
    # Reading only the lines asked for keeps a page of thousands cheap enough for 20 readings a second.
    lines = [line for line in text.splitlines() if re.split(r"[{ ]", line, maxsplit=1)[0] in names]
    found: Metrics = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    except (ValueError, LookupError):
        return {}
    return found


def number(value: Any) -> float | None:
    """A finite number, or the sum of a list of such; None for anything else."""
    if isinstance(value, list):
        parts = [part for item in value if (part := number(item)) is not None]
        return sum(parts) if parts else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def read_stats(stats: Stats, text: str, facts: Facts) -> dict[str, float]:
    """One page of counters in the harness's own names; what is absent is left out, never 0."""
    readings = {name: _reading(value) for name, value in stats.values.items()}
    if stats.format == "json":
        data = as_json(text)
        raw = {name: number([pick(data, path) for path in _paths(of)]) for name, of in readings.items()}
    else:
        page = metrics(text, frozenset(path for of in readings.values() for path in _paths(of)))
        raw = {name: number([_series(page, path) for path in _paths(of)]) for name, of in readings.items()}
    scaled = {name: _in_blocks(readings[name], value, facts) for name, value in raw.items()}
    return {name: value for name, value in scaled.items() if value is not None}


def _reading(value: str | Reading) -> Reading:
    return value if isinstance(value, Reading) else Reading(of=value)


def _paths(reading: Reading) -> list[str]:
    return [reading.of] if isinstance(reading.of, str) else reading.of


def _series(page: Metrics, name: str) -> float | None:
    return number([value for _, value in page.get(name, [])])


def _in_blocks(reading: Reading, value: float | None, facts: Facts) -> float | None:
    if value is None:
        return None
    if reading.times is not None:
        return value * facts.pool_blocks if facts.pool_blocks else None
    unit = {"blocks": 1, "tokens": facts.block, "bytes": facts.bytes_per_block}[reading.unit]
    return value / unit if unit else None

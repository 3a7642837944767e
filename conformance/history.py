"""What happened: event types, and the view of one workload that judges read.

Knows recorded facts only. Does not know how they came about (`drive.py`), nor what is right
(`judges/`). Times are seconds on one monotonic clock that starts with the run. A history holds no
verdict and no secret: edit a number in the file and a replay judges the edited fact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

VERSION = 1
Grade = Literal["bits", "tokens", "decided", "text"]


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NotClaimed(Record):
    reason: str
    link: str = ""


class Facts(Record):
    """A target as declared by its dialect and measured by its probe; all a judge knows about it."""

    dialect: str
    name: str
    version: str = ""
    model: str = ""
    asked_model: str = ""
    """The model that requests name, where they name one."""
    how: Literal["engine", "serve", "endpoint"]
    block: int | None = None
    """B, tokens per storage block; None when the target has none or does not say."""
    granule: int | None = None
    """G, what cached counts are multiples of."""
    chunk: int | None = None
    """C, tokens of one prefill chunk."""
    min_prefix: int = 0
    partial_reuse: bool = False
    lookahead: int = 0
    pool_blocks: int | None = None
    sharing: Literal["all", "slots", "one_shot", "unknown"] = "unknown"
    shares_in_flight: bool | None = None
    generated_reusable: bool | None = None
    grade: Grade = "tokens"
    blas: str = ""
    """The library behind products on a CPU, where the target tells it."""
    margin: float = 0.05
    """Top-2 logprob gap above which a token counts as decided."""
    takes_ids: bool = False
    returns_ids: bool = False
    reports_cached: bool = False
    has_logprobs: bool = False
    refuses_logprobs: bool = False
    """Whether requests ask for none, since the target refuses those that do."""
    has_salt: bool = False
    has_reset: bool = False
    has_stats: bool = False
    idle_blocks_live: bool = True
    """Whether the live gauge counts cached blocks that nobody references."""
    bytes_per_block: int | None = None
    settle: float = 0.0
    lcp_slack: int = 0
    """Tokens by which a measured prefix length may be off on a text-only target."""
    has_test: bool = False
    """Whether requests can be held in a phase, forwards made to fail, and blocks overwritten."""
    has_abort: bool = False
    """Whether the target has a route that ends a request."""
    has_chat: bool = False
    can_reload: bool = False
    """Whether an adapter's name can be given new weights."""
    can: list[str] = []
    """Names of sampling parameters that the target takes."""
    adapters: list[str] = []
    """Names of adapters that can be asked for."""
    renders: bool = False
    """Whether the ids of a chat prompt after the template are observable."""
    evict_unit: Literal["block", "entry", "unknown"] = "unknown"
    one_tier: bool | None = None
    """Whether what is evicted is gone, instead of in a slower tier."""
    ttl: float | None = None
    """Seconds after which a stored prefix may be dropped; None: never by age."""
    vocab: int | None = None
    """Ids that the model has: 0 to vocab - 1."""
    child_seeds: Literal["seed+index"] | None = None
    """The seed that choice i of a seeded request has alone; None where the target declares no rule."""
    claims: dict[str, NotClaimed] = {}
    """Requirement id -> why the target does not claim it."""
    machine: dict[str, str] = {}
    needs: dict[str, str] = {}
    """Fact -> what the server must be started with so that it shows."""
    several_caches: str = ""
    """Why what is cached cannot be judged here: more than one cache seems to answer. Empty: none seen."""
    contradictions: list[str] = []
    """What was measured and is not as the dialect declares it."""


class PlannedRequest(Record):
    """One request as the plan made it, with what is known about its prompt before it is sent."""

    id: str
    """`step` for a send, `step[i]` otherwise; unique within an arm."""
    step: str
    index: int
    prompt_ids: list[int] | None
    prompt_text: str | None
    parts: list[int]
    """Length of each prompt part: tokens when ids are known, else characters of text."""
    max_tokens: int
    salt: str
    stream: bool
    logprobs: bool
    key: str
    """Digest of prompt and parameters without salt: equal keys, equal solo run."""
    group: str | None = None
    """The burst's name, where `step` is the name of one of its entries."""
    sampling: dict[str, Any] = {}
    """Sampling parameters in the language's names, as sent."""
    adapter: str | None = None
    messages: list[dict[str, str]] | None = None
    """Role and content of each message of a chat; `prompt_ids` and `prompt_text` are None then."""
    leave: dict[str, Any] | None = None
    """How and when its client was to walk away."""
    marker: str | None = None
    """A text in the prompt that no other request holds."""


class Choice(Record):
    """One of several choices of a reply."""

    index: int
    token_ids: list[int] | None = None
    text: str = ""
    logprobs: list[float] | None = None
    finish_reason: str | None = None


class Outcome(Record):
    """One request as it went."""

    id: str
    arm: str
    step: str
    index: int
    plan: PlannedRequest
    sent: float
    first: float | None = None
    """Time of the first streamed token (None when it never came or the reply was not streamed)."""
    ended: float
    status: int | None = None
    error: str | None = None
    timed_out: bool = False
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    text: str = ""
    logprobs: list[float] | None = None
    gaps: list[float] | None = None
    """Top-2 logprob gap per generated token, where the target gives top logprobs."""
    logprob_tokens: list[str] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached: int | None = None
    """Reported cached tokens; None is absent, which is not 0."""
    usage: dict[str, Any] | None = None
    trace: dict[str, Any] | None = None
    left: Literal["queued", "prefilling", "first_token", "decoding", "last_step"] | None = None
    """The phase in which the client walked away, as measured."""
    tokens_at: list[float] = []
    choices: list[Choice] = []
    """For n > 1 every choice, in order of index; the fields above are those of choice 0."""
    prompt_logprobs: list[float | None] | None = None
    """One for each prompt token; the first has none."""
    retry_after: float | None = None
    """Seconds, as a refusal told."""
    rendered_ids: list[int] | None = None
    """Ids of the prompt as the target read it, after a chat template; where it tells them."""
    usages: int = 0
    """Usage objects seen in the reply."""
    rejected: bool = False
    """Refused with 4xx or 503 and an error body, so that the client knows why."""
    told: bool = False
    """What `error` says came from the server, as a status or an event, and nothing else was wrong."""

    @property
    def ok(self) -> bool:
        return self.error is None and not self.timed_out and self.status == 200

    @property
    def choices_asked(self) -> int:
        return int(self.plan.sampling.get("n") or 1)


class Sample(Record):
    """One reading of the target's statistics, in the harness's own names; absent values are left out.

    Names: live, referenced, cached_idle, free, total, peak_live, running, waiting, sequence,
    bytes_in_use, hits_tokens, computed_tokens, evictions, preemptions, adopted_requests, rejected_requests,
    missed_requests, generated_tokens, index_entries, bytes_budget, bytes_reserved.
    """

    at: float
    arm: str
    step: str
    values: dict[str, float]

    @property
    def quiet(self) -> bool:
        """Nothing runs and nothing waits, as far as the gauges tell."""
        return not self.values.get("running") and not self.values.get("waiting")


class Memory(Record):
    """One reading of the process tree's footprint, bytes (Linux PSS, macOS phys_footprint)."""

    at: float
    arm: str
    step: str
    bytes: int
    device: int | None = None
    """Bytes on GPUs (NVML), where they are told; never part of `bytes`."""


class Span(Record):
    """A step (or mark, wait, reset) and when it ran."""

    arm: str
    step: str
    kind: str
    start: float
    end: float
    detail: dict[str, Any] = {}


@dataclass
class Workload:
    """Everything recorded about one (spec, rung): what a judge may look at.

    `main` is the arm without a name in the spec. `solos` maps a request key to the cold runs of that
    request alone (the first is the reference, a second one the cold = cold control).
    """

    spec_id: str
    rung: str
    facts: dict[str, Facts]
    """By arm: a control may run on a process with other facts."""
    outcomes: list[Outcome] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    solos: dict[str, list[Outcome]] = field(default_factory=dict)
    trouble: str | None = None
    """Why the workload could not run to its end (server died, timeout); the facts up to then stand."""
    unobservable: str | None = None
    """Why it was not run at all on this target."""
    cut: bool = False
    """The file ended before this workload did."""
    baseline: dict[str, Any] | None = None
    """The recorded footprints that the run was compared with (`baseline.py`)."""

    def of(self, step: str, arm: str = "main") -> list[Outcome]:
        """Outcomes of a step, or of the entries of a burst, by either name, in order of index."""
        found = [o for o in self.outcomes if step in (o.step, o.plan.group) and o.arm == arm]
        return sorted(found, key=lambda o: o.index)

    def span(self, step: str, arm: str = "main") -> Span | None:
        """The step's span; of a step in a loop that of its first round."""
        return next(iter(self.spans_of(step, arm)), None)

    def spans_of(self, step: str, arm: str = "main") -> list[Span]:
        """The step's spans, one for each round; a burst's for an entry of it."""
        groups = {o.plan.group for o in self.outcomes if o.step == step and o.plan.group}
        return [s for s in self.spans if s.step in (groups or {step}) and s.arm == arm]

    def during(self, step: str, arm: str = "main") -> list[Sample]:
        """Samples taken between the start and the end of a step, in any of its rounds."""
        spans = self.spans_of(step, arm)
        return [s for s in self.samples if s.arm == arm and any(p.start <= s.at <= p.end for p in spans)]

    def readings(self) -> list[Sample]:
        """All samples of the main arm, oldest first."""
        return sorted((s for s in self.samples if s.arm == "main"), key=lambda s: s.at)

    def at_mark(self, mark: str, arm: str = "main") -> Sample | None:
        """The sample that the mark itself took."""
        return next((s for s in self.samples if s.step == mark and s.arm == arm), None)

"""A pure-Python engine for schedules by the thousand: the real scheduler, storage, pool, index.

Knows: rows are chained hashes of the tokens that wrote them, logits all the rows that were read, so any wrong
reuse (a foreign block, a stale row, a row never written) changes what is said from there on. A schedule is a
`Setup` and a list of acts: plain values whose repr is Python, so that a printed failure is fed to `replay`.
Does not know: arrays, models, threads, HTTP. The oracle `solo` shares two hash functions with the runner and
nothing else: no blocks, no index, no scheduler.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Rows
from functools import cache
from typing import Any, NamedTuple, cast

from engine.messages import Done, Event, Failed, Finished, Request, SamplingParams, Started, Token
from engine.sampling import Sampled
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.storage import PagedStorage

VOCAB = 12
EOS = 0
_TRUNKS = [random.Random(trunk).choices(range(VOCAB), k=20) for trunk in range(3)]


def row_after(row: int, token: int) -> int:
    return hash((row, token))


def say(read: Rows[int], choice: int) -> int:
    """The next token: a function of every row read and of the choice."""
    return hash((tuple(read), choice)) % VOCAB


@cache
def solo(prompt: tuple[int, ...], max_tokens: int, choice: int) -> list[int]:
    """What a choice says alone: one list of rows, nothing stored, nothing shared."""
    rows: list[int] = []
    for token in prompt:
        rows.append(row_after(rows[-1] if rows else 0, token))
    said: list[int] = []
    while len(said) < max_tokens and EOS not in said:
        said.append(say(rows, choice))
        rows.append(row_after(rows[-1], said[-1]))
    return said


# ---- stand-ins


class ListStore:
    """Blocks of Python lists. Recycled blocks keep what they held: a reader of unwritten rows gets it."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.block_bytes = 1
        self.bytes_reserved = 0
        self.blocks: dict[int, list[int]] = {}

    def view(self, table: list[int]) -> ListView:
        return ListView(self, table)

    def settle(self) -> None:
        """Lists are written at once."""

    def block(self, block: int) -> list[int]:
        return self.blocks.setdefault(block, [-1] * self.block_size)

    def copy(self, source: int, target: int) -> None:
        self.blocks[target] = list(self.block(source))

    def shrink(self, live: object) -> None:
        """Nothing is kept in slabs."""


class ListView:
    """One sequence's rows through its block table."""

    def __init__(self, store: ListStore, table: list[int]) -> None:
        self.store, self.table = store, table

    def write(self, position: int, row: int) -> None:
        block, offset = divmod(position, self.store.block_size)
        self.store.block(self.table[block])[offset] = row

    def read(self, length: int) -> list[int]:
        rows = [row for block in self.table for row in self.store.block(block)]
        assert length <= len(rows), "rows are read past the end of the table"
        return rows[:length]


class ListRunner:
    """A runner whose logits are the rows it read.

    `failing` names what raises next: a forward of its own, half done, or what else asks `maybe_fail`.
    """

    def __init__(self, grid: int) -> None:
        self.grid = grid
        self.failing = ""
        self.failures = 0

    def prefill(self, view: ListView, tokens: list[int], start: int, stop: int) -> list[int]:
        base = start - start % self.grid
        row = view.read(base)[-1] if base else 0
        for position in range(base, stop):
            row = row_after(row, tokens[position])
            if position >= start:
                view.write(position, -2 if self.failing == "prefill" else row)
        self.maybe_fail("prefill")
        return view.read(stop)

    def decode(self, rows: list[Any]) -> list[list[int]]:
        for row in rows:
            before = row.view.read(row.position)[-1]
            made = row_after(before, row.token)
            row.view.write(row.position, -3 if self.failing == "decode" else made)
        self.maybe_fail("decode")
        return [row.view.read(row.position + 1) for row in rows]

    def maybe_fail(self, method: str) -> None:
        if self.failing == method:
            self.failing, self.failures = "", self.failures + 1
            raise RuntimeError(f"{method} was asked to fail")


class ListSampler:
    def __init__(self, runner: ListRunner) -> None:
        self.runner = runner

    def sample(self, seq: Sequence, logits: list[int]) -> Sampled:
        self.runner.maybe_fail("sample")
        return Sampled(say(logits, seq.choice), None, [])


class Silent:
    """A codec for text that nobody reads."""

    def __init__(self, runner: ListRunner) -> None:
        self.runner = runner

    def decode(self, ids: list[int]) -> str:
        self.runner.maybe_fail("text")
        return ""


# ---- schedules


class Setup(NamedTuple):
    """Sizes of an engine. `generated`: whether rows made by decode are published."""

    block: int = 2
    blocks: int = 12
    grid: int = 2
    chunk: int = 4
    batch: int = 3
    reserve: str = "prompt"
    generated: bool = True


class Arrive(NamedTuple):
    """A prompt of `shared` tokens of one trunk and a tail of its own, under a salt."""

    trunk: int
    shared: int
    tail: int
    max_tokens: int = 4
    n: int = 1
    salt: str = ""

    @property
    def prompt(self) -> tuple[int, ...]:
        own = (self.tail % VOCAB, self.tail // VOCAB % VOCAB)
        return (*_TRUNKS[self.trunk][: self.shared], *own[: 1 + self.tail % 2])


class Step(NamedTuple):
    times: int = 1


class Cancel(NamedTuple):
    which: int


class Reset(NamedTuple):
    pass


class Fail(NamedTuple):
    """The next call of this raises: a forward, one of `STORAGE_FAILS`, "sample" or "text"."""

    method: str


STORAGE_FAILS = ("blocked_by", "admit", "extend", "publish", "fork")
FAILS = ("prefill", "decode", "sample", "text", *STORAGE_FAILS)


Act = Arrive | Step | Cancel | Reset | Fail


def drawn(seed: int, length: int = 40) -> tuple[Setup, list[Act]]:
    """A small engine and a schedule of `length` acts from a seed."""
    draw = random.Random(seed)
    block = draw.choice([2, 2, 3, 4])
    grid = block * draw.choice([1, 1, 2])
    setup = Setup(
        block, draw.randrange(7, 15), grid, grid * draw.choice([1, 2]), draw.choice([2, 3, 4]),
        draw.choice(["prompt", "prompt", "full"]), draw.random() < 0.7,
    )  # fmt: skip
    return setup, [_drawn_act(draw) for _ in range(length)]


def _drawn_act(draw: random.Random) -> Act:
    kind = draw.choices("asxrf", [28, 56, 8, 3, 5])[0]
    if kind == "a":
        sizes = draw.randrange(3), draw.randrange(1, 13), draw.randrange(12), draw.randrange(1, 13)
        return Arrive(*sizes, draw.choice([1, 1, 2]), draw.choice(["", "", "x"]))
    if kind == "x":
        return Cancel(draw.randrange(30))
    if kind == "f":
        return Fail(draw.choice(FAILS))
    return Step() if kind == "s" else Reset()


class Client:
    """What one request was told."""

    def __init__(self, number: int, act: Arrive) -> None:
        params = SamplingParams(max_tokens=act.max_tokens, seed=0, n=act.n)
        self.request = Request(f"r{number}", act.prompt, params, act.salt)
        self.events: list[Event] = []
        self.cancelled: int | None = None

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Simulation:
    """One schedule on one engine. `audit` False leaves the integrity checks out: only replies are judged."""

    def __init__(
        self, setup: Setup, *, paged: type[PagedStorage] = PagedStorage,
        scheduler: type[Scheduler] = Scheduler, audit: bool = True,
    ) -> None:  # fmt: skip
        self.audit = audit
        self.granule = max(setup.block, setup.grid)
        self.runner = ListRunner(setup.grid)
        store = cast(Any, ListStore(setup.block))
        self.storage = paged(
            store, setup.blocks, granule=self.granule, publish_generated=setup.generated,
            reserve=setup.reserve,
        )  # fmt: skip
        for name in STORAGE_FAILS:
            setattr(self.storage, name, self._fallible(name))
        sampler, codec = ListSampler(self.runner), Silent(self.runner)
        parts: list[Any] = [self.runner, self.storage, sampler, codec, frozenset({EOS})]
        self.scheduler = scheduler(
            *parts, adapted=lambda adapter: cast(Any, self.runner), chunk=setup.chunk, max_batch=setup.batch
        )
        self.clients: list[Client] = []

    def _fallible(self, name: str) -> Callable[..., Any]:
        method = getattr(self.storage, name)

        def call(*args: Any) -> Any:
            self.runner.maybe_fail(name)
            return method(*args)

        return call

    def play(self, acts: list[Act]) -> None:
        """Raises AssertionError, or whatever the engine raises, when something is wrong."""
        for act in acts:
            self.act(act)
        for _ in range(2000):
            if not self.scheduler.busy:
                return self.judge()
            self.step()
        raise AssertionError("still busy after 2000 steps")

    def act(self, act: Act) -> None:
        match act:
            case Arrive():
                self.arrive(act)
            case Step(times):
                for _ in range(times):
                    self.step()
            case Cancel(which):
                self.cancel(which)
            case Reset():
                self.storage.reset()
            case Fail(method):
                self.runner.failing = method

    def arrive(self, act: Arrive) -> None:
        prompt = act.prompt
        fits = self.storage.can_ever_hold(len(prompt), len(prompt) + act.max_tokens - 1, act.n)
        if fits and act.n <= self.scheduler.max_batch:
            client = Client(len(self.clients), act)
            self.clients.append(client)
            self.scheduler.add(client.request, client.events.append)

    def step(self) -> None:
        self.scheduler.step()
        if self.audit:
            problems = self.scheduler.problems()
            assert not problems, problems

    def cancel(self, which: int) -> None:
        if self.clients:
            client = self.clients[which % len(self.clients)]
            if client.request.id in self.scheduler.live:
                client.cancelled = len(client.events)
            self.scheduler.cancel(client.request.id)

    # -- the verdict ------------------------------------------------------------------------------------

    def judge(self) -> None:
        failed = sum(bool(client.of(Failed)) for client in self.clients)
        assert failed <= self.runner.failures * self.scheduler.max_batch, f"{failed} requests failed"
        unasked = [e.message for c in self.clients for e in c.of(Failed) if "asked to fail" not in e.message]
        assert not unasked, f"requests failed that were not asked to: {unasked}"
        for client in self.clients:
            if client.cancelled is not None:
                assert len(client.events) == client.cancelled, f"{client.request.id} hears after its cancel"
            elif not client.of(Failed):
                self.judge_reply(client)
        if self.audit:
            self.judge_rest()

    def judge_reply(self, client: Client) -> None:
        request, params = client.request, client.request.params
        said = [[t.id for t in client.of(Token) if t.choice == choice] for choice in range(params.n)]
        alone = [solo(request.prompt, params.max_tokens, choice) for choice in range(params.n)]
        assert said == alone, f"{request.id} says {said}, alone {alone}"
        assert sorted(e.choice for e in client.of(Finished)) == list(range(params.n))
        ((started,), (done,)) = client.of(Started), client.of(Done)
        assert done.cached_tokens == started.cached_tokens, f"{request.id} changes its usage"
        assert done.completion_tokens == sum(map(len, said))
        self.judge_cached(client, started.cached_tokens)

    def judge_cached(self, client: Client, cached: int) -> None:
        """Whole granules, never the last token, nothing that nobody under this salt had (count/1)."""
        request = client.request
        earlier = [c for c in self.clients if c is not client and c.request.salt == request.salt]
        prompts = [list(c.request.prompt) + [t.id for t in c.of(Token) if not t.choice] for c in earlier]
        shared = max((_common(request.prompt, prompt) for prompt in prompts), default=0)
        lawful = cached % self.granule == 0 and cached <= min(shared, len(request.prompt) - 1)
        assert lawful, f"{request.id} reports {cached} cached, shares {shared} of {len(request.prompt)}"

    def judge_rest(self) -> None:
        pool, counts = self.storage.pool, self.scheduler.counts
        assert (pool.referenced, self.storage.promised, self.scheduler.live) == (0, 0, {})
        assert len(self.storage.index) == pool.cached
        assert counts["hits_tokens_total"] == sum(
            e.cached_tokens for c in self.clients for e in c.of(Started)
        )


def _common(a: Rows[int], b: Rows[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def replay(setup: Setup, acts: list[Act], **parts: Any) -> Simulation:
    """Play a schedule; raises where it goes wrong."""
    simulation = Simulation(setup, **parts)
    simulation.play(acts)
    return simulation


def wrong(setup: Setup, acts: list[Act], **parts: Any) -> str:
    """What goes wrong in a schedule; empty when nothing does."""
    try:
        replay(setup, acts, **parts)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def shrunk(setup: Setup, acts: list[Act], **parts: Any) -> list[Act]:
    """The same schedule without every act that it does not need in order to go wrong."""
    at = 0
    while at < len(acts):
        fewer = acts[:at] + acts[at + 1 :]
        acts, at = (fewer, at) if wrong(setup, fewer, **parts) else (acts, at + 1)
    return acts


def report(setup: Setup, acts: list[Act], **parts: Any) -> str:
    """A failure as something to paste: `from tests.engine.standin import *`, then this."""
    least = shrunk(setup, acts, **parts)
    lines = ",\n    ".join(map(repr, least))
    return f"{wrong(setup, least, **parts)}\nreplay({setup!r}, [\n    {lines},\n])"

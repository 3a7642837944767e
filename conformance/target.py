"""A server under test: how to ask it, and what it can do.

Knows requests, sockets and the server's dialect. Does not know specs or judges: it sends what it is given and
says what came back. Nor does it know where servers come from (`fleet.py`).
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from conformance import calibrate, connecting, launch, probe, wire
from conformance.access import KEY_HEADER, KEY_VARIABLE
from conformance.asking import Asker, Page
from conformance.dialect import Action, Dialect, as_json, dialects, pick, read_stats
from conformance.footprint import Meter
from conformance.history import Facts, Outcome, PlannedRequest
from conformance.launch import Child
from conformance.leaving import Leaving
from conformance.plan import Vocabulary
from conformance.probe import How, TargetError
from conformance.rendering import Rendering
from conformance.replies import carries_token, to_outcome
from conformance.vocabulary import Words

__all__ = ["Target", "TargetError", "TargetOptions"]

RESET_TIMEOUT = 10.0
"""Seconds for a busy server to become free for a reset."""
QUICK = 5.0
"""Seconds for a GET that takes no thought."""
_BRIEF = 0.5
"""Seconds to look whether an endpoint that was lost is back."""
_POLL = 0.05
_WEIGHTS = 2**30
"""Weights that a run may begin with."""
_SHOWN = 400
"""Characters of an answer that a history keeps."""


@dataclass(frozen=True)
class TargetOptions:
    """How to get at the server. `url` for an endpoint, `command` (with `{port}`) for serve."""

    how: How
    url: str = ""
    command: str = ""
    engine_args: tuple[str, ...] = ()
    fault: str | None = None
    timeout: float = 300.0
    """Seconds for one request, and for a launched command to become ready."""
    progress: launch.Progress = field(default=lambda line: None, repr=False, compare=False)
    """Is told how the start of a server and a long workload go on."""
    margin: float | None = None
    """Top-2 gap above which a token counts as decided, where the user knows better than the dialect."""
    chunk: int | None = None
    """Tokens of one prefill chunk, where the user knows better than the dialect."""
    model: str | None = None
    allow: frozenset[str] = frozenset()
    """What may be done to an endpoint, which others may be using (`permission.py`)."""
    api_key: str | None = field(default_factory=lambda: os.environ.get(KEY_VARIABLE), repr=False)

    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More headers for every request; they may be secrets."""
    verify: bool | str = True
    """Whether a certificate is checked, or the file of those to trust."""
    pid: int | None = None
    """The process of an endpoint on this machine, for its footprint."""
    dry: bool = False
    """Whether nothing but GET may be sent: abilities are then supposed instead of probed."""

    @property
    def headers(self) -> Mapping[str, str]:
        key = {KEY_HEADER: f"Bearer {self.api_key}"} if self.api_key else {}
        return {**key, **self.extra}

    def may(self, what: str) -> bool:
        """Whether the server must bear a permission of `permission.py`: ours does, an endpoint if told."""
        return self.how != "endpoint" or what in self.allow

    @property
    def engine_flags(self) -> tuple[str, ...]:
        return (*self.engine_args, *(("--fault", self.fault) if self.fault else ()))


class Target:
    """One running server. Not for use from several threads, except that `sample` may run beside `send`."""

    facts: Facts
    vocabulary: Vocabulary

    def __init__(
        self,
        url: str,
        options: TargetOptions,
        child: Child | None = None,
        dialect: Dialect | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Recognises and probes the server. TargetError when it is unreachable or none of ours."""
        try:
            self.address = replace(connecting.parse_address(url), verify=options.verify)
        except ValueError as error:
            raise TargetError(str(error)) from None
        self.options, self.child, self.clock = options, child, clock
        self.cold: Callable[[], AbstractContextManager[Target | None]] = self._own_cold
        self._asker = Asker(self.address, options.headers)
        self._pages: dict[str, Page | None] = {}
        self.reloads = 0
        """How often an adapter got other weights."""
        # An endpoint may still have the last weights of the run before: the same again would be no change.
        self._first_weights = secrets.randbelow(_WEIGHTS) if options.how == "endpoint" else 0
        try:
            self._learn(dialect)
        except BaseException:
            self._asker.close()  # nobody gets this target, so nobody else could
            raise

    def _learn(self, dialect: Dialect | None) -> None:
        """All that is to be known of the server before a case; `dialect` where its family is known."""
        options = self.options
        self._reach()
        self.dialect = dialect or probe.recognise(self, dialects())
        self.listed = self._listed()
        self.model = options.model or self.dialect.ask.model or self.listed
        self.rendering = Rendering(self.dialect.ask, self.model)
        self.vocabulary = Words(4.0)
        self.facts = probe.declared(self, options.how)
        if options.dry:
            self.vocabulary, self.facts = probe.supposed(self, self.facts)
        else:
            self.vocabulary = probe.vocabulary(self)
            self.facts = probe.measured(self, self.facts)
            self.facts = calibrate.granule(self, self.facts)
        self._pages.clear()

    @property
    def url(self) -> str:
        return self.address.url

    def _reach(self) -> None:
        try:
            connecting.connect_again(self.address, QUICK).close()
        except OSError as error:
            raise TargetError(f"nothing answers at {self.url}: {connecting.describe(error)}") from None

    def _listed(self) -> str:
        """The first model that the server lists, or nothing."""
        page = self.page("/v1/models")
        name = pick(as_json(page.text), "data[0].id") if page is not None else None
        return name if isinstance(name, str) else ""

    def page(self, route: str) -> Page | None:
        """GET during the probe, each route once; None when no answer came."""
        if route not in self._pages:
            self._pages[route] = self.get(route)
        return self._pages[route]

    def get(self, route: str) -> Page | None:
        return self._request("GET", route)

    def _request(self, method: str, route: str, body: Any = None, timeout: float = QUICK) -> Page | None:
        return self._asker.ask(method, route, body, timeout)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, by the server's own tokenizer. ValueError where it has none to offer."""
        how = self.dialect.tokenize
        if how is None:
            raise ValueError("the target has no route that tokenizes")
        reply = self._request("POST", how.post, {how.field: text, **how.send})
        ids = pick(as_json(reply.text), how.ids) if reply is not None and reply.status == 200 else None
        if not isinstance(ids, list) or not all(type(id) is int for id in ids):
            raise ValueError(f"the target's {how.post} gave no ids")
        return ids

    def drop_logprobs(self) -> None:
        """Asks without logprobs from now on: the target refuses them."""
        self.rendering = replace(self.rendering, logprobs=False)

    def render(self, planned: PlannedRequest, *, cold: bool = False, id: str = "") -> wire.Call:
        """The request, ready to be put on a socket."""
        body = self.rendering.encoded(planned, cold=cold, id=id)
        return wire.Call(self.address, self.rendering.route(planned), body, self.options.headers)

    def parse(self, raw: wire.RawReply, planned: PlannedRequest, arm: str = "main") -> Outcome:
        return to_outcome(raw, planned, arm, self.dialect.answer)

    def is_token(self, payload: bytes) -> bool:
        """Whether a payload of a stream carries generated content."""
        return carries_token(payload, self.dialect.answer)

    def exchange(
        self,
        planned: PlannedRequest,
        *,
        cold: bool = False,
        leaving: Leaving | None = None,
        clock: wire.Clock | None = None,
        id: str = "",
        broken: str | None = None,
    ) -> wire.Exchange:
        """A request on a connection of its own, not yet sent; `broken` says why none need be tried."""
        call = self.render(planned, cold=cold, id=id)
        return wire.Exchange(call, clock or self.clock, self.options.timeout, leaving, self.is_token, broken)

    def send(self, planned: PlannedRequest, *, arm: str = "main", cold: bool = False) -> Outcome:
        """One request from start to end; what goes wrong stands in the outcome."""
        return self.parse(self.exchange(planned, cold=cold).run(), planned, arm)

    def sample(self) -> dict[str, float]:
        """All gauges in the harness's names, in blocks and tokens; {} when nothing could be read."""
        values: dict[str, float] = {}
        for stats in self.dialect.stats:
            reply = self.get(stats.get)
            if reply is not None and reply.status == 200:
                values |= read_stats(stats, reply.text, self.facts)
        return values

    def reset(self, timeout: float | None = None) -> dict[str, Any]:
        """Empties the cache; asks again while the server says that it is busy. `done` says whether it did."""
        action = self.dialect.reset
        if action is None:
            return {"done": False, "reason": "the target has no reset"}
        end, tries = time.monotonic() + (timeout or RESET_TIMEOUT), 1
        while (status := self._act(action)) != "done":
            if status != "refused" or time.monotonic() > end:
                return {"done": False, "tries": tries, "reason": f"{action.route}: {status}"}
            tries += 1
            time.sleep(_POLL)
        return {"done": True, "tries": tries}

    def reset_once(self) -> dict[str, Any]:
        """Asks for a reset and says what came back: `done` (None: it did not say), `status`, `answer`."""
        assert self.dialect.reset is not None
        return self.do(self.dialect.reset, {})

    def mark(self) -> None:
        """Starts the peak gauge anew, where the target has one."""
        if self.dialect.mark is not None:
            self._act(self.dialect.mark)

    def reload(self, adapter: str) -> dict[str, Any]:
        """Other weights under an adapter's name. Solo runs of before are of no use for it any more."""
        assert self.dialect.reload is not None
        self.reloads += 1
        number = self._first_weights + self.reloads
        return self.do(self.dialect.reload, {"adapter": adapter, "number": number})

    def abort(self, id: str) -> None:
        """Ends a request by its id, where the target has a route for it."""
        if self.dialect.abort is not None:
            self.do(self.dialect.abort, {"id": id})

    def do(self, action: Action, said: Mapping[str, Any]) -> dict[str, Any]:
        """One action with what the case says; what came back, as it is kept in a history."""
        body = {key: _filled(value, said, action.words) for key, value in action.send.items()}
        reply = self._request(action.method, action.route, body or None, self.options.timeout)
        if reply is None:
            return {"done": None, "status": None, "answer": "no answer came"}
        answer = as_json(reply.text)
        told = action.path is None or pick(answer, action.path) == action.equals
        done = reply.status == 200 and told
        return {"done": done, "status": reply.status, "answer": reply.text[:_SHOWN]}

    def _act(self, action: Action) -> Literal["done", "refused", "absent", "redirected"]:
        reply = self._request(action.method, action.route)
        if reply is None or reply.status in (404, 405, 501):
            return "absent"
        if 300 <= reply.status < 400:
            return "redirected"
        said = action.path is None or pick(as_json(reply.text), action.path) == action.equals
        return "done" if reply.status == 200 and said else "refused"

    def idle(self, timeout: float) -> bool:
        """Waits until nothing runs or waits and readings agree for the settle time; False if they never do.

        Gauges that lag show an old rest first: what ends it within the settle time is seen. A target without
        such gauges gets its settle time.
        """
        if self.dialect.poke:
            self.alive()
        end, last = time.monotonic() + timeout, self._steady()
        if not {"running", "waiting"} <= set(last):
            time.sleep(self.facts.settle)
            return True
        since = time.monotonic()
        while (now := time.monotonic()) < end:
            time.sleep(_POLL)
            last, before = self._steady(), last
            if last != before or last.get("running") != 0 or last.get("waiting") != 0:
                since = time.monotonic()
            elif now - since >= self.facts.settle:
                return True
        return False

    def _steady(self) -> dict[str, float]:
        return {name: value for name, value in self.sample().items() if name != "sequence"}

    def alive(self) -> bool:
        """Whether a one-token completion under a salt of its own finishes; no health route is believed."""
        return self.send(probe.trial(self, 1, seed=7, max_tokens=1)).ok

    def gone(self, grace: float = 0.0) -> str | None:
        """Why the server cannot be reached any more, or None while it can.

        A process that was started here is watched for `grace` seconds, in case it is just ending.
        """
        if self.child is not None and self.child.ended_within(grace):
            return f"the server process ended ({self.child.how_it_ended()})"
        try:
            connecting.connect_again(self.address, QUICK).close()
        except OSError as error:
            return f"nothing answers at {self.url} any more: {connecting.describe(error)}"
        return None

    def is_back(self) -> bool:
        """Whether a server that was gone can be reached again; a brief look."""
        try:
            connecting.connect(self.address, _BRIEF).close()
        except OSError:
            return False
        return True

    def _own_cold(self) -> AbstractContextManager[Target | None]:
        """Where a request computes everything itself: here if requests can ask for it, else nowhere."""
        ask = self.dialect.ask
        return nullcontext(self if ask.salt or ask.cold else None)

    def has_cold(self) -> bool:
        """Whether there is a way to compute a request alone and cold; starts nothing."""
        ask = self.dialect.ask
        ours = self.child is not None and self.dialect.cold_profile is not None
        return bool(ask.salt or ask.cold or ours)

    @property
    def pid(self) -> int | None:
        """The server's first process; None for an endpoint whose process nobody named."""
        return self.child.pid if self.child is not None else self.options.pid

    def meter(self) -> Meter | None:
        """Reads the footprint of the server's process tree; None where its process is not known."""
        return Meter(self.pid) if self.pid is not None else None

    def close(self) -> None:
        self._asker.close()
        if self.child is not None:
            self.child.close()


def _filled(value: Any, said: Mapping[str, Any], words: Mapping[str, Any]) -> Any:
    """`{word}` in an action's body: what the case says for it, in the server's words."""
    if isinstance(value, str) and value[:1] == "{" and value[1:-1] in said:
        found = said[value[1:-1]]
        return words.get(found, found) if isinstance(found, str) else found
    return value

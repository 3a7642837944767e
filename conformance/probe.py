"""The facts of one target: what its dialect declares, corrected by what a few small requests show.

Knows which field of a reply proves which ability, and how to measure characters a token. Does not know specs,
nor how adoption is measured (`calibrate.py`). The requests are short and under a private salt; the cache is
reset only on a server that was started for the run. A fact that could not be found out stays None: absent is
not 0.
"""

from __future__ import annotations

import math
import platform
import time
from typing import TYPE_CHECKING, Any, Literal

import psutil
from pydantic import ValidationError

from conformance.dialect import Check, Dialect, Source, Value, as_json, metrics, pick
from conformance.history import Facts, Outcome, PlannedRequest
from conformance.replies import excerpt, is_completion
from conformance.vocabulary import ASCII, LETTERS, Ids, Letters, Words

if TYPE_CHECKING:
    from conformance.target import Target
    from conformance.wire import RawReply

How = Literal["engine", "serve", "endpoint"]
_FEWEST_IDS = 64
_SUPPOSED_IDS = 4096


class TargetError(Exception):
    """A target that cannot be used; the message says what was tried, what came back, what would be right."""


def recognise(target: Target, known: tuple[Dialect, ...]) -> Dialect:
    """The first family whose signs all hold; only ever asks with GET."""
    return next(dialect for dialect in known if all(_holds(target, check) for check in dialect.recognise))


def _holds(target: Target, check: Check) -> bool:
    if check.host is not None:
        return f".{target.address.host}".endswith(f".{check.host}")
    reply = target.page(check.get or "")
    if reply is None or reply.status != 200:
        return False
    if check.text is not None:
        return check.text in reply.text
    header, path = check.header, check.path or ""
    found = reply.headers.get(header.lower()) if header else pick(as_json(reply.text), path)
    if check.equals is not None:
        return bool(found == check.equals)
    return found is not None and str(found).startswith(check.starts or "")


def declared(target: Target, how: How) -> Facts:
    """What the dialect says, literally or by where to look. TargetError when a value cannot be a fact."""
    dialect = target.dialect
    values = {name: _value(target, value) for name, value in dialect.facts.items()}
    said = {name: value for name, value in values.items() if value is not None}
    said.setdefault("model", target.listed or target.model)
    known = {"margin": target.options.margin, "chunk": target.options.chunk}
    said |= {name: value for name, value in known.items() if value is not None}
    try:
        facts = Facts(
            dialect=dialect.dialect,
            name=dialect.name,
            version=str(_value(target, dialect.version) or "") if dialect.version else "",
            asked_model=target.model,
            how=how,
            has_salt=dialect.ask.salt is not None,
            has_chat=dialect.ask.chat is not None,
            has_abort=dialect.abort is not None,
            can_reload=dialect.reload is not None and target.options.may("reset"),
            can=list(dialect.ask.sampling),
            adapters=_adapters(target),
            needs=dialect.needs,
            machine=_machine(),
            **said,
        )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise TargetError(f"{target.url} says {first['input']!r} for {place}: {first['msg']}") from None
    return facts.model_copy(update={"claims": dialect.not_claimed(facts)})


def _adapters(target: Target) -> list[str]:
    """Those whose model the server lists."""
    page = target.page("/v1/models")
    listed = pick(as_json(page.text), "data[*].id") if page is not None else None
    models = {name: model.format(model=target.model) for name, model in target.dialect.ask.adapters.items()}
    return [name for name, model in models.items() if isinstance(listed, list) and model in listed]


def _is_test_build(target: Target) -> bool:
    """Whether requests can be held; asks to let go of all, which changes nothing."""
    hooks = target.dialect.test
    if hooks is None or not target.options.may("reset"):
        return False
    return bool(target.do(hooks.hold, {"phase": "off", "after": 0})["done"])


def _value(target: Target, value: Value) -> Any:
    if not isinstance(value, Source):
        return value
    reply = target.page(value.get)
    if reply is None or reply.status != 200:
        return None
    found = _series(reply.text, value) if value.metric else pick(as_json(reply.text), value.path or "")
    if value.map:
        return value.map.get(str(found))
    return _plus(found, value.plus) if value.plus and found is not None else found


def _plus(found: Any, plus: int) -> Any:
    try:
        return int(found) + plus
    except (TypeError, ValueError, OverflowError):
        return found  # no number, and refused as what it is


def _series(text: str, value: Source) -> str | float | None:
    name = value.metric or ""
    for labels, number in metrics(text, frozenset([name])).get(name, []):
        return labels.get(value.label) if value.label else number
    return None


def _machine() -> dict[str, str]:
    memory = psutil.virtual_memory().total
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": str(psutil.cpu_count() or 0),
        "memory_mib": str(memory // 2**20),
        "python": platform.python_version(),
    }


def vocabulary(target: Target) -> Ids | Words:
    """Plain ids where the target takes ids and tells which ones are, else words of a guessed length."""
    if target.dialect.ask.ids:
        plain = plain_ids(target)
        if len(plain) >= _FEWEST_IDS:
            return Ids(plain, target.encode, _spoken(target))
    return Words(per_token=4.0)


def plain_ids(target: Target) -> list[int]:
    """Ids that ordinary text turns into, in ascending order; empty when the target cannot say.

    Where letters come back one to one, exactly those; a tokenizer that merges gives what it has merged.
    """
    try:
        letters = target.encode(LETTERS)
        if len(set(letters)) == len(LETTERS):
            return sorted(set(letters))
        return sorted({*letters, *target.encode(Words(4.0).text(2000, 1))})
    except ValueError:
        return []


def _spoken(target: Target) -> Words | None:
    """Letters for messages, where each is one token."""
    ids = target.encode(LETTERS)
    return Letters(LETTERS) if len(set(ids)) == len(LETTERS) == len(ids) else None


def supposed(target: Target, facts: Facts) -> tuple[Ids | Words, Facts]:
    """Abilities as the dialect would have them, for a look that sends nothing but GET."""
    ask, answer = target.dialect.ask, target.dialect.answer
    takes_ids = ask.ids and target.dialect.tokenize is not None
    update = {
        "takes_ids": takes_ids,
        "returns_ids": answer.ids is not None,
        "has_logprobs": bool(ask.logprobs),
        "reports_cached": bool(answer.cached),
        "has_reset": target.dialect.reset is not None and target.options.may("reset"),
    }
    target.facts = facts.model_copy(update=update)
    found = target.facts.model_copy(update={"has_stats": bool(target.sample())})
    return (Ids(range(_SUPPOSED_IDS), _supposed_ids) if takes_ids else Words(4.0)), found


def _supposed_ids(text: str) -> list[int]:
    return [ord(letter) % _SUPPOSED_IDS for letter in text[:: round(Words(4.0).per_token)]]


def measured(target: Target, facts: Facts) -> Facts:
    """The facts as a few requests show them. TargetError when not even a plain completion works."""
    target.facts = facts.model_copy(update={"takes_ids": target.vocabulary.is_ids})
    seen = _first_reply(target)
    found: dict[str, Any] = {
        "takes_ids": target.vocabulary.is_ids,
        "returns_ids": seen.token_ids is not None,
        "has_logprobs": seen.logprobs is not None,
        "refuses_logprobs": not target.rendering.logprobs,
        "reports_cached": seen.cached is not None,
        "has_stats": bool(target.sample()),
        "has_reset": target.options.may("reset") and target.reset()["done"],
        "has_test": _is_test_build(target),
    }
    found["grade"] = _grade(facts, found)
    found["version"] = facts.version or _told_version(target)
    target.facts = target.facts.model_copy(update=found)
    if isinstance(target.vocabulary, Words):
        target.vocabulary, slack = _measure_text(target)
        target.facts = target.facts.model_copy(update={"lcp_slack": slack})
    return target.facts


def _first_reply(target: Target) -> Outcome:
    """A small completion with all that the dialect asks for; without logprobs where those are refused."""
    plan = trial(target, 8, seed=0)
    raw = target.exchange(plan).run()
    if raw.status in (400, 422):
        target.drop_logprobs()
        raw = target.exchange(plan).run()
    outcome = target.parse(raw, plan)
    if not outcome.ok or not is_completion(raw):
        raise TargetError(_no_llm(target, raw, outcome))
    return outcome


def _no_llm(target: Target, raw: RawReply, outcome: Outcome) -> str:
    route = f"{target.url} did not answer POST {target.dialect.ask.route} like an LLM server"
    came = f" (it sent {excerpt(raw)})" if raw.status is not None else ""
    expected = "expected a completion: JSON, or a stream of it, whose choices hold a text and a finish_reason"
    return f"{route}: {outcome.error or 'no completion came back'}{came}; {expected}"


def _told_version(target: Target) -> str:
    path = target.dialect.answer.version
    if path is None:
        return ""
    raw = target.exchange(trial(target, 8, seed=0)).run()
    told = pick(as_json(raw.events[0][1].decode(errors="replace")), path) if raw.events else None
    return str(told or "").partition("-")[0]


def _grade(facts: Facts, found: dict[str, Any]) -> str:
    """The declared grade, lowered to what the replies allow to compare."""
    if not found["returns_ids"]:
        return "text"
    if facts.grade in ("bits", "decided") and not found["has_logprobs"]:
        return "tokens"
    return facts.grade


def trial(
    target: Target, tokens: int, seed: int, *, salt: str | None = None, max_tokens: int = 2
) -> PlannedRequest:
    """A request of the probe's own; `salt` None is one of its own for each seed."""
    words = target.vocabulary
    number = _number(seed)
    return PlannedRequest(
        id="probe",
        step="probe",
        index=0,
        prompt_ids=words.ids(tokens, number) if words.is_ids else None,
        prompt_text=None if words.is_ids else words.text(tokens, number),
        parts=[tokens],
        max_tokens=max_tokens,
        salt=f"probe-{number}",
        stream=True,
        logprobs=True,
        key=f"probe-{number}",
    )


def _number(seed: int) -> int:
    # Another prompt in every run, else an endpoint still holds what the last run's probe stored.
    return seed * 1_000_003 + time.time_ns() % 1_000_003


def _prompt_tokens(target: Target, text: str) -> int | None:
    plan = trial(target, 1, seed=1, max_tokens=1).model_copy(update={"prompt_text": text})
    return target.send(plan).prompt_tokens


def _measure_text(target: Target) -> tuple[Words, int]:
    """What to write prompts in, and by how many tokens a length reckoned from the text may be off."""
    for letters in (LETTERS, ASCII):
        words = Letters(letters)
        if _ratio(_counted(target, words)) == (1.0, 0):
            return words, 0
    ratio, off = _ratio(_counted(target, Words(1.0)))
    # Where letters merge, the token across the end of a common prefix may differ as well.
    return Words(ratio), off + 2


def _counted(target: Target, words: Words) -> list[tuple[int, int | None]]:
    """Length in characters and in tokens of a few texts."""
    texts = [words.text(length, seed) for seed, length in enumerate((300, 900, 1500, 1200))]
    return [(len(text), _prompt_tokens(target, text)) for text in texts]


def _ratio(points: list[tuple[int, int | None]]) -> tuple[float, int]:
    """Characters a token, and the most tokens that a point lies off that line; a guess without counts."""
    known = [(x, y) for x, y in points if y is not None]
    if len(known) < len(points) or known[2][1] <= known[0][1]:
        return 4.0, 0
    (x0, y0), (x2, y2) = known[0], known[2]
    ratio = (x2 - x0) / (y2 - y0)
    return ratio, math.ceil(max(abs(y - (y0 + (x - x0) / ratio)) for x, y in known))

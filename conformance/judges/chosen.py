"""Judges of out/4, out/5 and out/7: how tokens are chosen and told, with a cache or without one.

Knows sampling options as the spec names them, and what logprobs must be (docs/requirements.md). Does not know
what an option does to a reply beyond that it must change it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from pydantic import Field

from conformance.history import Choice, Grade, Outcome
from conformance.judges.base import (
    Case,
    Finding,
    cached_of,
    guard,
    need,
    need_same_prompts,
    register,
    step_ref,
)
from conformance.judges.out import (
    Difference,
    cold_equals_cold,
    compare,
    content_of,
    effective_grade,
    guard_varied,
    of_step,
    solo_of,
)
from conformance.spec import Name, Strict


class ChosenAlike(Strict):
    of: Name = step_ref()
    plain: Name | None = step_ref(None)
    reuse: bool = Field(True, description="false: this type of request cannot adopt, and need not")


@register("chosen_alike", "out/4", ChosenAlike, solo_steps=of_step)
def chosen_alike(args: ChosenAlike, case: Case) -> Finding:
    """Sampling options, stop strings and prompt logprobs give warm what they give cold (out/4).

    `plain` sends the same prompts without the options: a reply that equals it shows no effect.
    """
    got = case.requests(args.of)
    solos = [solo_of(case, o) for o in got]
    need_exact(case, got)
    grade = effective_grade(case, [*got, *solos], "target")
    found = [_difference(case, grade, o, solo) for o, solo in zip(got, solos, strict=True)]
    wrong = next(((o, d) for o, d in zip(got, found, strict=True) if d), None)
    if wrong is not None:
        cold_equals_cold(case, got, grade)
    else:
        guard_varied(case)
        _guard_effect(args, case, got)
    return Finding(
        expected=f"each of {len(got)} replies = its solo run, grade {grade}",
        observed=[_line(o, difference) for o, difference in zip(got, found, strict=True)],
        witness=f"{wrong[0].id} with {_options(wrong[0])} (cached {wrong[0].cached}) parts from its "
        f"solo run: {wrong[1].text}"
        if wrong
        else "",
        request=wrong[0].id if wrong else None,
    )


def need_exact(case: Case, got: Sequence[Outcome]) -> None:
    """Drawn tokens are compared at grades bits and tokens alone (out/4)."""
    drawn = any(o.plan.sampling.get("temperature") for o in got)
    exact = case.facts.grade in ("bits", "tokens")
    need(not drawn or exact, f"drawn tokens cannot be compared at grade {case.facts.grade}")


def _options(outcome: Outcome) -> str:
    return ", ".join(f"{name} {value}" for name, value in outcome.plan.sampling.items()) or "no option"


def _line(outcome: Outcome, difference: Difference | None) -> str:
    said = difference.text if difference else "equal"
    return f"{outcome.id}  {_options(outcome)}  cached {outcome.cached}  {said}"


def _difference(case: Case, grade: Grade, reply: Outcome, solo: Outcome) -> Difference | None:
    found = compare(case, grade, reply, solo)
    if found is None and reply.finish_reason != solo.finish_reason:
        found = Difference(
            len(reply.text), f"it ended by {reply.finish_reason}, alone by {solo.finish_reason}"
        )
    if found is None and reply.text != solo.text and grade != "decided":
        found = Difference(0, f"its text is {reply.text[-20:]!r} at the end, alone {solo.text[-20:]!r}")
    return found or _prompt_difference(case, grade, reply, solo)


def _prompt_difference(case: Case, grade: Grade, reply: Outcome, solo: Outcome) -> Difference | None:
    """Prompt logprobs, to the bit at grade bits, within the declared margin elsewhere."""
    a, b = reply.prompt_logprobs, solo.prompt_logprobs
    if a is None and b is None:
        return None
    if a is None or b is None or len(a) != len(b):
        return Difference(0, f"{len(a or [])} prompt logprobs came back, alone {len(b or [])}")
    margin = 0.0 if grade == "bits" else case.facts.margin
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if not _close(x, y, margin)), None)
    return (
        None if at is None else Difference(at, f"the logprob of prompt token {at} is {a[at]}, alone {b[at]}")
    )


def _close(a: float | None, b: float | None, margin: float) -> bool:
    return a == b if a is None or b is None else abs(a - b) <= margin


def _guard_effect(args: ChosenAlike, case: Case, got: Sequence[Outcome]) -> None:
    if args.reuse:
        cold = next((o.id for o in got if cached_of(o) <= 0), None)
        guard(cold is None, f"{cold} adopted nothing, so warm was not compared with cold")
    asked = [o for o in got if o.plan.sampling.get("prompt_logprobs")]
    silent = next((o.id for o in asked if not o.prompt_logprobs), None)
    need(silent is None, f"{silent} asked for prompt logprobs and got none")
    if args.plain is not None:
        plain = case.requests(args.plain)
        guard(len(plain) in (1, len(got)), f"{len(got)} requests are compared with {len(plain)}")
        pairs = zip(got, plain * len(got) if len(plain) == 1 else plain, strict=True)
        same = next((o for o, p in pairs if content_of(o) == content_of(p)), None)
        guard(same is None, f"{_options(same) if same else ''} changes nothing in {same.id if same else ''}")


class ChoicesAlone(Strict):
    of: Name = step_ref()
    alone: Name = step_ref()


def _alone(args: ChoicesAlone) -> frozenset[str]:
    return frozenset({args.alone})


@register("choices_alone", "out/5", ChoicesAlone, solo_steps=_alone)
def choices_alone(args: ChoicesAlone, case: Case) -> Finding:
    """Each of n choices is what that choice is alone (out/5).

    `alone` holds one request at temperature 0, else one for each choice with the seed that the target
    declares for it.
    """
    _need_taken(case, args.of)
    many = case.requests(args.of)[0]
    asked = int(many.plan.sampling.get("n", 1))
    guard(asked > 1, f"{many.id} asks for {asked} choice")
    singles = _singles(case, args, many, asked)
    need_same_prompts(case, [many] * asked, singles)
    grade = effective_grade(
        case, [*singles, *map(_as_outcome, [many] * len(many.choices), many.choices)], "target"
    )
    missing = asked - len({choice.index for choice in many.choices})
    wrong = None if missing else _first_apart(case, grade, many, singles)
    if wrong is not None:
        cold_equals_cold(case, singles, grade)
    if wrong is None and not missing and _drawn(many):
        texts = [content_of(_as_outcome(many, choice)) for choice in many.choices]
        guard(
            len({str(text) for text in texts}) > 1,
            "every choice is the same, so which is whose shows nothing",
        )
    return Finding(
        expected=f"each of {asked} choices of {many.id} = that choice alone, grade {grade}",
        observed=[f"choice {c.index}  {c.finish_reason}  {c.text[:40]!r}" for c in many.choices],
        witness=f"{many.id} came back with {len(many.choices)} of {asked} choices"
        if missing
        else wrong or "",
        request=many.id if missing or wrong else None,
    )


def _need_taken(case: Case, step: str) -> None:
    """A server may refuse several choices, or several of temperature 0; that is no wrong answer."""
    refused = next((o for o in case.workload.of(step) if o.status in (400, 422)), None)
    need(refused is None, f"the target refuses it: {refused.error if refused else ''}")


def _drawn(outcome: Outcome) -> bool:
    return bool(outcome.plan.sampling.get("temperature"))


def _singles(case: Case, args: ChoicesAlone, many: Outcome, asked: int) -> list[Outcome]:
    """The requests that each choice must equal."""
    singles = case.requests(args.alone)
    if not _drawn(many):
        return [singles[0]] * asked
    need_exact(case, [many])
    need(case.facts.child_seeds is not None, "the target declares no rule for the seeds of choices")
    seed = int(many.plan.sampling.get("seed", 0))
    wanted, given = [seed + i for i in range(asked)], [o.plan.sampling.get("seed") for o in singles]
    guard(given == wanted, f"the seeds of {args.alone!r} are {given}, those of the choices {wanted}")
    return singles


def _as_outcome(many: Outcome, choice: Choice) -> Outcome:
    told = choice.model_dump(exclude={"index"})
    return many.model_copy(update={**told, "logprob_tokens": None, "gaps": None})


def _first_apart(case: Case, grade: Grade, many: Outcome, singles: Sequence[Outcome]) -> str | None:
    for choice in many.choices:
        difference = compare(case, grade, _as_outcome(many, choice), singles[choice.index])
        if difference is not None:
            alone = singles[choice.index].id
            return f"choice {choice.index} of {many.id} is not what {alone} is: {difference.text}"
    return None


class LogprobsTrue(Strict):
    of: Name = step_ref()


@register("logprobs_true", "out/7", LogprobsTrue)
def logprobs_true(args: LogprobsTrue, case: Case) -> Finding:
    """Logprobs are finite and at most 0, ids lie in the vocabulary, their tokens are the reply's (out/7)."""
    got = case.requests(args.of)
    told = [o for o in got if o.logprobs]
    wrong = next(((o, text) for o in got if (text := _false(case, o))), None)
    if wrong is None:
        need(len(told) == len(got), f"{len(got) - len(told)} of {len(got)} replies came without logprobs")
        shown = any(len(_plain(o.text)) > 3 or len(_of_bytes(o.logprob_tokens or [])) > 3 for o in told)
        need(shown, "no reply has text to compare the tokens of the logprobs with")
    return Finding.about(
        wrong,
        expected="logprobs finite and <= 0, ids in the vocabulary, their tokens those of the reply",
        observed=[_told(o) for o in got],
    )


def _told(outcome: Outcome) -> str:
    values = outcome.logprobs or []
    least = f"{min(values):.3g}..{max(values):.3g}" if values else "none"
    return f"{outcome.id}  {len(values)} logprobs {least}, {len(outcome.token_ids or [])} ids"


def _false(case: Case, outcome: Outcome) -> str:
    return _bad_value(outcome) or _bad_id(case, outcome) or _bad_count(outcome) or _bad_token(outcome)


def _bad_value(outcome: Outcome) -> str:
    # A float32 that stands for probability 1 may round to a hair above 0.
    values = enumerate(outcome.logprobs or [])
    at = next(((i, value) for i, value in values if not math.isfinite(value) or value > 1e-6), None)
    return f"the logprob of token {at[0]} of {outcome.id} is {at[1]}" if at else ""


def _bad_id(case: Case, outcome: Outcome) -> str:
    size = case.facts.vocab
    outside = next(
        (id for id in outcome.token_ids or [] if id < 0 or (size is not None and id >= size)), None
    )
    known = "" if size is None else f" of {size} tokens"
    return "" if outside is None else f"{outcome.id} holds the id {outside}, outside the vocabulary{known}"


def _bad_count(outcome: Outcome) -> str:
    values, ids = outcome.logprobs, outcome.token_ids
    if values is None or ids is None or len(values) == len(ids):
        return ""
    return f"{outcome.id} has {len(ids)} tokens and {len(values)} logprobs"


def _bad_token(outcome: Outcome) -> str:
    """Where the tokens of the logprobs spell another text than the reply."""
    tokens = outcome.logprob_tokens
    if not tokens or outcome.text in ("".join(tokens), "".join(tokens[:-1])):
        return ""
    for cut, spell in ((_plain, "".join), (_visible, _of_bytes)):
        spelled, text = cut(spell(tokens)), cut(outcome.text)
        told = spelled or cut is _plain
        if told and text not in (spelled, cut(spell(tokens[:-1]))):  # an end of text has a token, no text
            at = next((i for i, (a, b) in enumerate(zip(spelled, text, strict=False)) if a != b), 0)
            return (
                f"the tokens of the logprobs of {outcome.id} spell {spelled[at : at + 20]!r} where the reply "
                f"says {text[at : at + 20]!r}: they are not the tokens of the reply"
            )
    return ""


_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES = {chr(b): b for b in _VISIBLE} | {
    chr(0x100 + i): b for i, b in enumerate(b for b in range(256) if b not in _VISIBLE)
}
"""How byte-level BPE writes each byte: itself where visible, else the next character from U+0100."""


def _of_bytes(tokens: Sequence[str]) -> str:
    """The text of tokens that are spelled byte by byte; empty where they are not, or cut a character."""
    spelled = "".join(tokens)
    if spelled.isascii() or any(letter not in _BYTES for letter in spelled):
        return ""
    text = bytes(_BYTES[letter] for letter in spelled).decode("utf-8", "replace")
    return "" if "\ufffd" in text else text


def _visible(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable() and not letter.isspace())


_SPACE = re.compile(r"[^\x21-\x7e]|<0x[0-9A-F]{2}>|bytes:(\\x[0-9a-f]{2})+")


def _plain(text: str) -> str:
    """Printable ASCII alone: how spaces and parts of a character are spelled differs between tokenizers."""
    return _SPACE.sub("", text)

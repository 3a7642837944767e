"""What a spec means, as far as no target is needed: names that must exist, lengths that must parse.

Knows the spec's types, the judges' arguments and the requirements. Does not know YAML or files beyond asking
the document for marks. A spec that passes here can still be impossible on a target: `plan.py` finds that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic.fields import FieldInfo

from conformance.dialect import dialects
from conformance.judges import Judge
from conformance.judges.out import DECIDED_TOKENS
from conformance.lengths import SYMBOLS, LengthError, constant
from conformance.lengths import check as check_length
from conformance.lengths import names as length_names
from conformance.marks import Document, Location, Problem
from conformance.requirements import REQUIREMENTS
from conformance.spec import (
    Burst,
    Expect,
    HeadPart,
    LiteralPart,
    Mark,
    Part,
    Request,
    Series,
    Serve,
    Spec,
    Turns,
    UniquePart,
    step_name,
)


def check(spec: Spec, document: Document, judges: Mapping[str, Judge]) -> list[Problem]:
    """Every problem of a well-formed spec whose parts do not fit each other."""
    return [
        *_names(spec, document),
        *_ladder(spec, document),
        *_lengths(spec, document),
        *_texts(spec, document),
        *_unused(spec, document),
        *_profiles(spec, document),
        *_leaves(spec, document),
        *_references(spec, document, judges),
        *_counts(spec, document),
        *_decided(spec, document),
        *_ids(spec, document),
        *_proofs(spec, document),
    ]


def names(spec: Spec) -> dict[str, list[str]]:
    """What a judge's argument may refer to, by kind of reference."""
    return {
        "step": [step_name(step) for step in spec.steps if isinstance(step, Request | Turns)],
        "mark": [step.mark for step in spec.steps if isinstance(step, Mark)],
        "arm": list(spec.arms),
    }


def references(judge: Judge, expect: Expect) -> Iterator[tuple[str, str, str]]:
    """(argument, kind, name) of every step, mark or arm that an expectation's arguments name."""
    args = judge.args.model_validate(expect.args)
    for name, field in type(args).model_fields.items():
        kind, value = _ref(field), getattr(args, name)
        for target in value if isinstance(value, list | tuple) else [value]:
            if kind and isinstance(target, str):
                yield name, kind, target


def _ref(field: FieldInfo) -> str | None:
    extra = field.json_schema_extra
    kind = extra.get("ref") if isinstance(extra, dict) else None
    return kind if isinstance(kind, str) else None


def _names(spec: Spec, document: Document) -> Iterator[Problem]:
    seen: set[str] = set()
    for i, step in enumerate(spec.steps):
        name = step_name(step)
        if name and name in seen:
            yield document.problem(("steps", i), f"a step called {name!r} came before", "a name of its own")
        seen.add(name)


def _ladder(spec: Spec, document: Document) -> Iterator[Problem]:
    if len(spec.ladder) > 1:
        yield document.problem(("for",), "a ladder has one variable", "one key with a list of lengths")
    for name, values in spec.ladder.items():
        if name in SYMBOLS:
            yield document.problem(("for", name), f"{name!r} is already a symbol", "another name", key=True)
        if not values or len({str(v) for v in values}) < len(values):
            yield document.problem(("for", name), "the rungs of a ladder", "one or more lengths, each once")


def _lengths(spec: Spec, document: Document) -> Iterator[Problem]:
    for loc, expr, variables in _all_lengths(spec):
        try:
            check_length(expr, variables)
        except LengthError as error:
            yield document.problem(loc, str(error))


def _all_lengths(spec: Spec) -> Iterator[tuple[Location, int | str, Sequence[str]]]:
    for name, values in spec.ladder.items():
        yield from ((("for", name, i), value, ()) for i, value in enumerate(values))
    variables = list(spec.ladder)
    for name, text in spec.texts.items():
        yield ("texts", name, "tokens"), text.tokens, variables
    for loc, step in _with_prompts(spec):
        yield (*loc, "max_tokens"), step.max_tokens, variables
    for loc, part in _parts(spec):
        if isinstance(part, UniquePart):
            yield (*loc, "unique"), part.unique, variables
        if isinstance(part, HeadPart):
            yield (*loc, "tokens"), part.tokens, variables


def _with_prompts(spec: Spec) -> Iterator[tuple[Location, Request | Turns]]:
    for i, step in enumerate(spec.steps):
        if isinstance(step, Request | Turns):
            yield ("steps", i), step


def _parts(spec: Spec) -> Iterator[tuple[Location, Part]]:
    for loc, step in _with_prompts(spec):
        for key in ("prompt", "opening", "each"):
            for i, part in enumerate(getattr(step, key, [])):
                yield (*loc, key, i), part


def _texts(spec: Spec, document: Document) -> Iterator[Problem]:
    for loc, part in _parts(spec):
        name = part.head_of if isinstance(part, HeadPart) else part
        if isinstance(name, str) and name not in spec.texts:
            where = (*loc, "head_of") if isinstance(part, HeadPart) else loc
            yield document.problem(where, f"no text is called {name!r}", _one_of(spec.texts))


def _unused(spec: Spec, document: Document) -> Iterator[Problem]:
    """What nothing refers to is a mistyped name, or a part that someone forgot."""
    parts = [part for _, part in _parts(spec)]
    used = {part.head_of if isinstance(part, HeadPart) else part for part in parts if _is_reference(part)}
    for name in spec.texts:
        if name not in used:
            yield document.problem(("texts", name), f"no prompt uses the text {name!r}", _USE_IT, key=True)
    lengths = {word for _, expr, _ in _all_lengths(spec) for word in _words(expr)}
    for name in spec.ladder:
        if name not in lengths:
            yield document.problem(("for", name), f"no length uses the variable {name!r}", _USE_IT, key=True)
    for loc, part in _parts(spec):
        if isinstance(part, LiteralPart) and not part.literal:
            yield document.problem((*loc, "literal"), "an empty literal adds nothing", "a text")


def _is_reference(part: Part) -> bool:
    return isinstance(part, str | HeadPart)


def _words(expr: int | str) -> list[str]:
    """Names in a length; none in one that is wrong and reported as such."""
    try:
        return length_names(expr)
    except LengthError:
        return []


def _profiles(spec: Spec, document: Document) -> Iterator[Problem]:
    """A name that no family of servers has would leave the case unobservable for ever."""
    known = sorted({name for dialect in dialects() for name in dialect.profiles})
    serves: list[tuple[Location, Serve]] = [(("serve",), spec.serve)]
    serves += [(("arms", name, "serve"), arm.serve) for name, arm in spec.arms.items()]
    for loc, serve in serves:
        if serve.profile not in known:
            message = f"no dialect has a launch profile {serve.profile!r}"
            yield document.problem((*loc, "profile"), message, ", ".join(known))


def _counts(spec: Spec, document: Document) -> Iterator[Problem]:
    """A judge cannot want more of a step's requests than there are."""
    counts = {step_name(step): _requests(step) for _, step in _with_prompts(spec)}
    for i, expect in enumerate(spec.expect):
        of, least = expect.args.get("of"), expect.args.get("at_least")
        if least is not None and of in counts and least > counts[of]:
            message = f"at_least is {str(least)[:20]}, but {of!r} has {counts[of]} requests"
            yield document.problem(("expect", i, expect.judge, "at_least"), message, f"1 to {counts[of]}")


def _requests(step: Request | Turns) -> int:
    if isinstance(step, Turns):
        return step.count
    return step.requests if isinstance(step, Burst | Series) else 1


def _decided(spec: Spec, document: Document) -> Iterator[Problem]:
    """At grade decided a reply shows something only from `DECIDED_TOKENS` tokens on (out/1)."""
    asked = {e.args["of"] for e in spec.expect if e.judge == "same_as_solo" and _may_be_decided(e)}
    for loc, step in _with_prompts(spec):
        tokens = _constant(step.max_tokens)
        if step_name(step) in asked and tokens is not None and 0 < tokens < DECIDED_TOKENS:
            message = f"same_as_solo needs {DECIDED_TOKENS} decided tokens, and these replies have {tokens}"
            yield document.problem((*loc, "max_tokens"), message, f"{DECIDED_TOKENS} or more")


def _may_be_decided(expect: Expect) -> bool:
    return expect.args.get("grade", "target") in ("target", "decided")


def _constant(expr: int | str) -> int | None:
    try:
        return constant(expr)
    except LengthError:
        return None


def _leaves(spec: Spec, document: Document) -> Iterator[Problem]:
    for loc, step in _with_prompts(spec):
        if isinstance(step, Request) and step.leave and not step.stream:
            yield document.problem((*loc, "stream"), "a client that leaves must stream", "true")


def _references(spec: Spec, document: Document, judges: Mapping[str, Judge]) -> Iterator[Problem]:
    legal = names(spec)
    for i, expect in enumerate(spec.expect):
        for argument, kind, name in references(judges[expect.judge], expect):
            if name not in legal.get(kind, ()):
                loc = ("expect", i, expect.judge, argument)
                yield document.problem(loc, f"no {kind} is called {name!r}", _one_of(legal.get(kind, ())))


def _ids(spec: Spec, document: Document) -> Iterator[Problem]:
    seen: set[str] = set()
    for i, expect in enumerate(spec.expect):
        if expect.id in seen:
            message = f"two expectations are called {expect.id!r}"
            yield document.problem(("expect", i, expect.judge), message, "an `id:` of its own", key=True)
        seen.add(expect.id)


def _proofs(spec: Spec, document: Document) -> Iterator[Problem]:
    """What a spec claims to prove, some expectation must judge; it may look at more than it claims."""
    judged = {expect.requirement for expect in spec.expect}
    for i, requirement in enumerate(spec.proves):
        if requirement not in REQUIREMENTS:
            yield document.problem(
                ("proves", i), f"there is no requirement {requirement}", _one_of(REQUIREMENTS)
            )
        elif requirement not in judged:
            legal = f"an expectation with `as: {requirement}`, or leave it out"
            yield document.problem(("proves", i), f"no expectation judges {requirement}", legal)
    for i, expect in enumerate(spec.expect):
        if expect.requirement not in REQUIREMENTS:
            loc = ("expect", i, expect.judge, "as")
            yield document.problem(
                loc, f"there is no requirement {expect.requirement}", _one_of(REQUIREMENTS)
            )


_USE_IT = "use it or leave it out; a name that is mistyped elsewhere looks like this too"


def _one_of(words: object) -> str:
    assert isinstance(words, Mapping | Sequence)
    return ", ".join(words) or "none is declared"

"""What a spec means, as far as no target is needed: names that must exist, lengths that must parse.

Knows the spec's types, the judges' arguments and the requirements. Does not know YAML or files beyond asking
the document for marks. A spec that passes here can still be impossible on a target: `plan.py` finds that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from conformance import walk, wording
from conformance.dialect import dialects
from conformance.judges import Judge
from conformance.judges.out import DECIDED_TOKENS
from conformance.lengths import SYMBOLS, LengthError, constant
from conformance.lengths import check as check_length
from conformance.lengths import names as length_names
from conformance.marks import Document, Location, Problem
from conformance.referring import referring
from conformance.requirements import REQUIREMENTS
from conformance.rungs import bound, rungs, words
from conformance.sense import sense
from conformance.spec import (
    Burst,
    ChangedPart,
    Churn,
    Expect,
    Fail,
    HeadPart,
    LiteralPart,
    Mark,
    Overwrite,
    Part,
    Reload,
    Repeat,
    Request,
    Reset,
    Send,
    Series,
    Serve,
    Spec,
    Start,
    Turns,
    UniquePart,
    entries,
    step_name,
)


def check(spec: Spec, document: Document, judges: Mapping[str, Judge]) -> list[Problem]:
    """Every problem of a well-formed spec whose parts do not fit each other."""
    return [
        *_names(spec, document),
        *_ladder(spec, document),
        *_words(spec, document),
        *_lengths(spec, document),
        *_texts(spec, document),
        *_unused(spec, document),
        *_profiles(spec, document),
        *_leaves(spec, document),
        *referring(spec, document),
        *sense(spec, document),
        *_references(spec, document, judges),
        *_counts(spec, document),
        *_decided(spec, document),
        *_ids(spec, document),
        *_proofs(spec, document),
    ]


def names(spec: Spec) -> dict[str, list[str]]:
    """What a judge's argument may refer to, by kind of reference."""
    steps = [step for _, step in walk.steps(spec)]
    done = [step_name(step) for step in steps if isinstance(step, Reset | Reload | Overwrite | Fail)]
    return {
        "step": [*dict.fromkeys(name for _, name, _ in walk.named(spec)), *filter(None, done)],
        "mark": [step.mark for step in steps if isinstance(step, Mark)],
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
    for loc, name in _given(spec):
        if name and name in seen:
            yield document.problem(loc, f"a step called {name!r} came before", "a name of its own")
        seen.add(name)


def _given(spec: Spec) -> Iterator[tuple[Location, str]]:
    """Names of steps, and of entries; two entries of one burst are no two steps (`sense.py`)."""
    for loc, step in walk.steps(spec):
        yield loc, step_name(step)
        each = list(getattr(step, "each", None) or ()) if isinstance(step, Request) else []
        firsts = {entry.name: (*loc, "each", i) for i, entry in reversed(list(enumerate(each)))}
        yield from ((where, name) for name, where in reversed(firsts.items()) if name)


def _ladder(spec: Spec, document: Document) -> Iterator[Problem]:
    if len(spec.ladder) > 1 or ("ladder" in spec.model_fields_set and not spec.ladder):
        yield document.problem(("for",), "a ladder has one variable", "one key with a list of lengths")
    for name, values in spec.ladder.items():
        if name in SYMBOLS:
            yield document.problem(("for", name), f"{name!r} is already a symbol", "another name", key=True)
        if not values or len({str(v) for v in values}) < len(values):
            yield document.problem(("for", name), "the rungs of a ladder", "one or more lengths, each once")


def _words(spec: Spec, document: Document) -> Iterator[Problem]:
    """A `$word` is that of the ladder, and each of its words fits every place where it stands."""
    for word in sorted(words(spec) - {f"${name}" for name in spec.ladder}):
        yield document.problem(
            ("steps",), f"no ladder has the words of {word!r}", f"for: {{{word[1:]}: [...]}}"
        )
    if len(spec.ladder) != 1 or not words(spec):
        return
    [name] = spec.ladder
    for i, rung in enumerate(rungs(spec)):
        try:
            bound(spec, rung)
        except ValidationError as error:
            why = wording.message(error.errors()[0])
            yield document.problem(("for", name, i), f"does not fit where it is used: {why}")


def _lengths(spec: Spec, document: Document) -> Iterator[Problem]:
    for loc, expr, variables in _all_lengths(spec):
        try:
            check_length(expr, variables, least=0 if loc[-1] == "at" else 1)
        except LengthError as error:
            yield document.problem(loc, str(error))


def _all_lengths(spec: Spec) -> Iterator[tuple[Location, int | str, Sequence[str]]]:
    variables = [name for name in spec.ladder if f"${name}" not in words(spec)]
    for name in variables:
        yield from ((("for", name, i), value, ()) for i, value in enumerate(spec.ladder[name]))
    for name, text in spec.texts.items():
        yield ("texts", name, "tokens"), text.tokens, variables
    for loc, step in walk.asking(spec):
        yield (*loc, "max_tokens"), step.max_tokens, variables
    for loc, other in walk.steps(spec):
        keys = ("tokens", "each") if isinstance(other, Churn) else ("max_tokens",)
        said = [key for key in keys if isinstance(other, Churn | Repeat) and getattr(other, key) is not None]
        yield from (((*loc, key), getattr(other, key), variables) for key in said)
    for loc, part in walk.parts(spec):
        for kind, key in _LENGTHS.items():
            if isinstance(part, kind):
                yield (*loc, key), getattr(part, key), variables


_LENGTHS: dict[type, str] = {UniquePart: "unique", HeadPart: "tokens", ChangedPart: "at"}
"""Where a prompt part has a length."""


def _text_of(part: Part) -> tuple[Location, str] | None:
    """The text that a part names, and the key that does."""
    if isinstance(part, HeadPart):
        return ("head_of",), part.head_of
    if isinstance(part, ChangedPart):
        return ("changed",), part.changed
    return ((), part) if isinstance(part, str) else None


def _texts(spec: Spec, document: Document) -> Iterator[Problem]:
    for loc, part in walk.parts(spec):
        if (named := _text_of(part)) is not None and named[1] not in spec.texts:
            message = f"no text is called {named[1]!r}"
            yield document.problem((*loc, *named[0]), message, _one_of(spec.texts))


def _unused(spec: Spec, document: Document) -> Iterator[Problem]:
    """What nothing refers to is a mistyped name, or a part that someone forgot."""
    used = {named[1] for _, part in walk.parts(spec) if (named := _text_of(part)) is not None}
    for name in spec.texts:
        if name not in used:
            yield document.problem(("texts", name), f"no prompt uses the text {name!r}", _USE_IT, key=True)
    lengths = {word for _, expr, _ in _all_lengths(spec) for word in _symbols(expr)}
    for name in spec.ladder:
        if name not in lengths and f"${name}" not in words(spec):
            yield document.problem(("for", name), f"no length uses the variable {name!r}", _USE_IT, key=True)
    for loc, part in walk.parts(spec):
        if isinstance(part, LiteralPart) and not part.literal:
            yield document.problem((*loc, "literal"), "an empty literal adds nothing", "a text")


def _symbols(expr: int | str) -> list[str]:
    """Names in a length; none in one that is wrong and reported as such."""
    try:
        return length_names(expr)
    except LengthError:
        return []


def _profiles(spec: Spec, document: Document) -> Iterator[Problem]:
    """A name that no family of servers has would leave the case unobservable for ever."""
    known = sorted({name for dialect in dialects() for name in dialect.profiles})
    serves: list[tuple[Location, Serve]] = [(("serve",), spec.serve)]
    serves += [(("arms", name, "serve"), arm.serve) for name, arm in spec.arms.items() if arm.serve]
    for loc, serve in serves:
        if serve.profile not in known and not serve.profile.startswith("$"):
            message = f"no dialect has a launch profile {serve.profile!r}"
            yield document.problem((*loc, "profile"), message, ", ".join(known))


def _counts(spec: Spec, document: Document) -> Iterator[Problem]:
    """A judge cannot want more of a step's requests than there are."""
    counts: dict[str, int] = {}
    for _, name, requests in walk.named(spec):
        counts[name] = counts.get(name, 0) + requests * walk.rounds(spec, name)
    churns = {step_name(step) for _, step in walk.steps(spec) if isinstance(step, Churn)}
    for i, expect in enumerate(spec.expect):
        of, least = expect.args.get("of"), expect.args.get("at_least")
        if least is not None and of in counts.keys() - churns and least > counts[of]:
            message = f"at_least is {str(least)[:20]}, but {of!r} has {counts[of]} requests"
            yield document.problem(("expect", i, expect.judge, "at_least"), message, f"1 to {counts[of]}")


def _decided(spec: Spec, document: Document) -> Iterator[Problem]:
    """At grade decided a reply shows something only from `DECIDED_TOKENS` tokens on (out/1)."""
    asked = {e.args["of"] for e in spec.expect if e.judge == "same_as_solo" and _may_be_decided(e)}
    for loc, names, length in _replies(spec):
        tokens = _constant(length)
        if names & asked and tokens is not None and 0 < tokens < DECIDED_TOKENS:
            message = f"same_as_solo needs {DECIDED_TOKENS} decided tokens, and these replies have {tokens}"
            yield document.problem((*loc, "max_tokens"), message, f"{DECIDED_TOKENS} or more")


def _replies(spec: Spec) -> Iterator[tuple[Location, set[str | None], int | str]]:
    """Every length of a reply, with the names under which its requests are found."""
    for loc, step in walk.steps(spec):
        if isinstance(step, Burst | Start) and step.each:
            for i, entry in enumerate(entries(step)):
                yield (*loc, "each", i), {entry.name, step_name(step)}, entry.max_tokens
        elif isinstance(step, Send | Burst | Series | Start | Turns):
            yield loc, {step_name(step)}, step.max_tokens


def _may_be_decided(expect: Expect) -> bool:
    return expect.args.get("grade", "target") in ("target", "decided")


def _constant(expr: int | str) -> int | None:
    try:
        return constant(expr)
    except LengthError:
        return None


def _leaves(spec: Spec, document: Document) -> Iterator[Problem]:
    for loc, step in walk.asking(spec):
        if isinstance(step, Request) and step.leave and not step.stream:
            yield document.problem((*loc, "stream"), "a client that leaves must stream", "true")


def _references(spec: Spec, document: Document, judges: Mapping[str, Judge]) -> Iterator[Problem]:
    legal = names(spec)
    for i, expect in enumerate(spec.expect):
        for argument, kind, name in references(judges[expect.judge], expect):
            if name not in legal.get(kind, ()):
                loc = ("expect", i, expect.judge, argument)
                yield document.problem(loc, f"no {kind} is called {name!r}", _one_of(legal.get(kind, ())))
        yield from _with_itself(document, i, judges[expect.judge], expect)


def _with_itself(document: Document, i: int, judge: Judge, expect: Expect) -> Iterator[Problem]:
    """What is compared with itself is always equal; in another arm it is another one."""
    seen: dict[tuple[str, str], str] = {}
    named = () if expect.args.get("arm") is not None else references(judge, expect)
    for argument, kind, name in named:
        first = seen.get((kind, name))
        if first is not None and kind != "arm":
            message = f"the {kind} {name!r} is judged beside itself: `{first}` names it too"
            yield document.problem(("expect", i, expect.judge, argument), message, f"another {kind}")
        seen[kind, name] = argument


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

"""A spec file is loaded whole, or refused at the place of every mistake in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.load import Loaded, load, load_all, spec_files
from conformance.marks import Document, Location, SpecError, read_document

GOOD = """\
spec: 1
id: adopt/sample
title: A sample
proves: [count/1, adopt/1]
texts:
  system: {tokens: 8B, seed: 1}
for: {n: [1G-1, 1G]}
steps:
  - send: seed
    prompt: [system, {unique: n}]
  - mark: before
  - burst: eight
    requests: 8
    prompt: [{head_of: system, tokens: 2B}, {unique: 4, seed: 1}]
    leave: {phase: decoding}
  - wait: idle
expect:
  - counted: {of: eight}
  - adopters: {of: eight, at_least: 7, id: adopt-them}
"""


def write(folder: Path, text: str, name: str = "case.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load(write(folder, text))
    return caught.value


def places(error: SpecError) -> list[tuple[int, int, str]]:
    return [(p.line, p.column, p.message) for p in error.problems]


def test_a_good_file_is_loaded(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, GOOD))
    assert loaded.spec.id == "adopt/sample"
    assert [type(step).__name__ for step in loaded.spec.steps] == ["Send", "Mark", "Burst", "Wait"]
    assert loaded.spec.ladder == {"n": ["1G-1", "1G"]}


def test_an_expectation_is_normalised(tmp_path: Path) -> None:
    first, second = load(write(tmp_path, GOOD)).spec.expect
    assert (first.judge, first.id, first.requirement, first.line) == ("counted", "counted", "count/1", 18)
    assert (second.id, second.args) == ("adopt-them", {"of": "eight", "at_least": 7})


def test_as_names_another_requirement(tmp_path: Path) -> None:
    text = GOOD.replace("id: adopt-them", "as: adopt/3").replace("count/1, adopt/1", "count/1, adopt/3")
    assert load(write(tmp_path, text)).spec.expect[1].requirement == "adopt/3"


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "message"),
    [
        ("title: A sample", "title: 3", 3, 8, "should be a text, not 3"),
        ("title:", "titel:", 3, 1, "unknown key 'titel', did you mean 'title'?"),
        ("requests: 8", "requets: 8", 13, 5, "unknown key 'requets', did you mean 'requests'?"),
        ("requests: 8", "requests: true", 13, 15, "should be a whole number, not true"),
        ("requests: 8", "requests: 1", 13, 15, "should be 2 or more, not 1"),
        ("{unique: n}", "{uniq: n}", 10, 22, "a prompt part is a text's name"),
        ("- wait: idle", "- wiat: idle", 16, 5, "a step is a mapping with one of the words send"),
        ("- wait: idle", "- wait: -1", 16, 11, "'idle' or 'settle' or 0 or more, not -1"),
        ("tokens: 8B", "tokens: 1.5", 6, 20, "should be a whole number or a text, not 1.5"),
        ("tokens: 8B", "tokens: 8Q", 6, 20, "unknown symbol 'Q'"),
        ("tokens: 8B", "tokens: 99999999999999999999", 6, 20, "is more than 10,000,000 tokens"),
        ("tokens: 8B", "tokens: 3-9", 6, 20, "'3-9' is -6 tokens; at least 1 is needed"),
        ("tokens: 8B", "tokens: 0", 6, 20, "0 is 0 tokens; at least 1 is needed"),
        ("tokens: 8B", "tokens: B/0", 6, 20, "'B/0': division by zero"),
        ("seed: 1}", "seed: 1}\n  sistem: {tokens: 1, seed: 2}", 7, 3, "no prompt uses the text 'sistem'"),
        ("{unique: n}", "{unique: 3}", 7, 7, "no length uses the variable 'n'"),
        ("{unique: n}", "{unique: n}, {literal: ''}", 10, 45, "an empty literal adds nothing"),
        ("at_least: 7", "at_least: 99", 19, 37, "at_least is 99, but 'eight' has 8 requests"),
        ("{of: eight, at_least: 7", "{of: seed, at_least: 2", 19, 36, "but 'seed' has 1 request"),
        ("title: A sample", "title: A\nserve: {profile: nope}", 4, 18, "has a launch profile 'nope'"),
        ("for:", "arms: {a: {serve: {profile: nope}}}\nfor:", 7, 29, "has a launch profile 'nope'"),
        ("[system, {unique: n}]", "[]", 10, 13, "at least one item is needed"),
        ("leave: {phase: decoding}", "leave: 3", 15, 12, "a mapping is needed, not 3"),
        ("{n: [1G-1, 1G]}", "{n: [1G-1, n]}", 7, 17, "unknown symbol 'n'"),
        ("{n: [1G-1, 1G]}", "{}", 7, 6, "a ladder has one variable"),
        ("{head_of: system, tokens: 2B}", "{changed: system, at: -1}", 14, 36, "at least 0 is needed"),
        ("{n: [1G-1, 1G]}", "{n: []}", 7, 10, "the rungs of a ladder"),
        ("{n: [1G-1, 1G]}", "{n: [1G], m: [1]}", 7, 6, "a ladder has one variable"),
        ("{n: [1G-1, 1G]}", "{n: [1G], pool: [1]}", 7, 16, "'pool' is already a symbol"),
        ("{n: [1G-1, 1G]}", "{N: [1G-1, 1G]}", 7, 7, "should be a name (a-z, 0-9, _ and -,"),
        ("[system, {unique: n}]", "[sistem, {unique: n}]", 10, 14, "no text is called 'sistem'"),
        ("head_of: system", "head_of: sistem", 14, 24, "no text is called 'sistem'"),
        ("tokens: 2B", "tokens: 2B-", 14, 40, "'2B-' is no length"),
        ("unique: 4", "unique: ''", 14, 54, "'' is no length"),
        ("requests: 8", "requests: 8\n    max_tokens: Q", 14, 17, "unknown symbol 'Q'"),
        ("mark: before", "mark: seed", 11, 5, "a step called 'seed' came before"),
        ("phase: decoding}", "phase: decoding}\n    stream: false", 16, 13, "a client that leaves must"),
        ("counted: {of: eight}", "counted: {of: eigt}", 18, 19, "no step is called 'eigt'"),
        ("counted: {of: eight}", "counted: {off: eight}", 18, 15, "unknown key 'off', did you mean 'of'?"),
        ("counted: {of: eight}", "counted: {}", 18, 14, "the key 'of' is missing"),
        ("counted: {of: eight}", "counted:", 19, 3, "the key 'of' is missing"),
        ("counted: {of: eight}", "counted: [1]", 18, 14, "the arguments of counted are a mapping, not [1]"),
        ("counted: {of: eight}", "{counted: {}, of: 1}", 18, 5, "an expectation is one judge's word"),
        ("counted: {of: eight}", "same_as: {of: eight, as: count/1}", 18, 14, "say with `to` or `arm` what"),
        ("counted: {of: eight}", "delta: {gauge: x, since: a, until: b}", 18, 12, "'x' is no gauge"),
        ("counted: {of: eight}", "same_as: {of: eight, to: eight}", 18, 30, "'eight' is judged beside"),
        ("counted: {of: eight}", "delta: {gauge: live, equals: 0, since: before, until: before}", 18, 59,
         "the mark 'before' is judged beside itself: `since` names it too"),
        ("counted: {of: eight}", "distinct: {of: seed, others: [eight, eight]}", 18, 34, "'eight' is judged"),
        ("counted:", "countend:", 18, 5, "unknown judge 'countend', did you mean 'counted'?"),
        ("counted: {of: eight}", "counted: {of: eight, as: x}", 18, 30, "should be an id of a requirement"),
        ("id: adopt-them", "id: counted", 19, 5, "two expectations are called 'counted'"),
        ("id: adopt-them", "as: adopt/99", 19, 44, "there is no requirement adopt/99"),
        ("[count/1, adopt/1]", "[count/1, adopt/1, adopt/99]", 4, 28, "there is no requirement adopt/99"),
        ("[count/1, adopt/1]", "[count/1, adopt/1, out/1]", 4, 28, "no expectation judges out/1"),
        ("spec: 1", "spec: 2", 1, 7, "should be 1, not 2"),
        ("spec: 1", "spec: 1\nspec: 1", 2, 1, "found duplicate key"),
        ("title: A sample", "title: [", 5, 1, "expected ',' or ']'"),
        ("title: A sample", "title: 2020-01-01", 3, 8, "a date or a tagged value means nothing here"),
        ("title: A sample", "title: !!python/name:os.system", 3, 8, "a date or a tagged value"),
        ("title: A sample", "1: A sample", 1, 1, "the key 1 is not a text"),
        ("title: A sample", "? [1]\n: 2", 1, 1, "is not a text"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_at_its_place(
    tmp_path: Path, old: str, new: str, line: int, column: int, message: str
) -> None:
    assert old in GOOD
    found = places(refused(tmp_path, GOOD.replace(old, new, 1)))
    assert (line, column) in [place[:2] for place in found], found
    assert any(message in place[2] for place in found if place[:2] == (line, column)), found


def test_every_mistake_is_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = GOOD.replace("title: A sample", "title: 3").replace("counted:", "countend:").replace("8\n", "x\n")
    assert [p.line for p in refused(tmp_path, text).problems] == [3, 13, 18]


def test_missing_keys_are_named_one_by_one(tmp_path: Path) -> None:
    messages = [p.message for p in refused(tmp_path, "spec: 1\nid: a/b\ntitle: t\n").problems]
    assert messages == [f"the key {key!r} is missing" for key in ("expect", "proves", "steps")]


def test_the_error_shows_line_and_caret_and_what_would_be_legal(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD.replace("requests: 8", "requets: 8"))
    assert str(error).splitlines()[-4:] == [
        f"{tmp_path}/case.yaml:13:5: unknown key 'requets', did you mean 'requests'?",
        "        requets: 8",
        "        ^",
        "legal here: prompt, max_tokens, salt, stream, logprobs, leave, messages, sampling, adapter, "
        "burst, requests, each, stagger",
    ]


def test_a_tab_before_the_place_keeps_the_caret_under_it(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD.replace("{of: eight}", "{of:\teight, x: 1}"))
    assert "    - counted: {of:\teight, x: 1}\n                     \t       ^" in str(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a spec is a mapping that starts with `spec: 1`"),
        ("- a\n", "a spec is a mapping"),
        ("a: 1\n---\nb: 2\n", "a second document"),
        ("a: \x00", "case.yaml:1:4: the character U+0000 may not stand in YAML"),
        ("b: 1\na: é\x07", "case.yaml:2:5: the character U+0007 may not stand in YAML"),
        ("a: " + "[" * 30, "case.yaml:1:23: nested more than 20 levels deep"),
        ("a: [" + "1," * 10_000, "more than 10,000 values"),
        ("a: &a {b: *a}", "case.yaml:1:11: the alias 'a' stands inside its own anchor"),
        ("b: 1\na: " + "9" * 5000, "case.yaml:2:4: a number of 5000 digits"),
        ("a: *x", "found undefined alias"),
        ("\t- x", "cannot start any token"),
    ],
)
def test_what_is_no_spec_at_all(tmp_path: Path, text: str, message: str) -> None:
    assert message in str(refused(tmp_path, text))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"gone\.yaml:1:1: cannot be read: No such file"):
        load(tmp_path / "gone.yaml")


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("spec: 1\ntitle: é".encode() + b"\xe9")
    with pytest.raises(SpecError, match=r"latin\.yaml:2:9: is not UTF-8 text: byte 0xe9\n    title: é�\n"):
        load(path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert load(path).spec == load(write(tmp_path, GOOD)).spec


def bomb(levels: int) -> str:
    """Three values, ten times as many on every further line."""
    lines = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(["a0: &a0 [x, x, x]", *lines, "a: 1\n"])


def test_an_alias_counts_as_all_that_it_stands_for(tmp_path: Path) -> None:
    assert "more than 10,000 values" in str(refused(tmp_path, bomb(9)))
    assert "unknown key 'a0'" in str(refused(tmp_path, bomb(3)))


def test_counting_stops_at_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    plain = Document._plain

    def noted(self: Document, node: object, loc: Location) -> object:
        counted.append(len(loc))
        return plain(self, node, loc)

    monkeypatch.setattr(Document, "_plain", noted)
    refused(tmp_path, bomb(30))
    assert len(counted) == 10_001


def test_a_monstrous_line_is_cut_around_the_caret(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD.replace("title: A sample", f"{'x' * 2000}: {'y' * 2000} : z"))
    _, text, caret, *_ = str(error).splitlines()
    assert len(text) == 4 + 102
    assert text[len(caret) - 1] == ":"
    assert (text[4], text[-1]) == ("…", "…")


def test_a_monstrous_name_is_cut_in_the_message(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD.replace("title: A sample", f"title: A sample\n{'x' * 2000}: 1"))
    assert all(len(line) < 400 for line in str(error).splitlines())


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    assert "\x07" not in str(refused(tmp_path, "a: \x07"))


SOLO = GOOD.replace("  - counted", "  - same_as_solo: {of: eight, as: count/1}\n  - counted")


def test_too_short_a_reply_shows_nothing_at_grade_decided(tmp_path: Path) -> None:
    text = SOLO.replace("requests: 8", "requests: 8\n    max_tokens: 16-1")
    assert places(refused(tmp_path, text)) == [
        (14, 17, "same_as_solo needs 16 decided tokens, and these replies have 15")
    ]


@pytest.mark.parametrize(("tokens", "grade"), [("16", ""), ("reply", ""), ("15", ", grade: tokens")])
def test_a_reply_may_be_long_or_of_another_grade(tmp_path: Path, tokens: str, grade: str) -> None:
    text = SOLO.replace("requests: 8", f"requests: 8\n    max_tokens: {tokens}")
    assert load(write(tmp_path, text.replace("as: count/1", f"as: count/1{grade}")))


def test_no_word_of_the_library_reaches_a_user(tmp_path: Path) -> None:
    """Each key of the spec with a value of the wrong kind, wherever it stands."""
    for key in ("serve", "arms", "texts", "steps", "proves", "expect", "for", "kills"):
        rest = "\n".join(f"{line}" for line in MINIMAL.splitlines() if not line.startswith(f"{key}:"))
        [problem] = refused(tmp_path, f"{key}: 3\n{rest}\n").problems
        assert (problem.line, problem.column) == (1, len(key) + 3)
        assert problem.message in ("a mapping is needed, not 3", "a list is needed, not 3")


MINIMAL = """\
spec: 1
id: a/b
title: t
proves: [count/1]
steps: [{send: s, prompt: [{unique: 4}]}]
expect: [{counted: {of: s}}]
"""


def test_a_merged_key_is_marked_where_it_was_merged(tmp_path: Path) -> None:
    arms = "arms:\n  cold: &cold\n    serve: {fresh: true}\n  bad: {<<: *cold, x: 1}\n"
    text = GOOD.replace("texts:", f"{arms}texts:")
    assert [place[:2] for place in places(refused(tmp_path, text))] == [(8, 20)]
    document = read_document(write(tmp_path, text))
    assert document.mark(("arms", "bad", "serve")) == document.mark(("arms", "bad"))
    assert document.mark_key(("arms", "bad", "serve")) == document.mark(("arms", "bad"))


def test_an_expectation_may_look_at_more_than_the_spec_claims(tmp_path: Path) -> None:
    assert load(write(tmp_path, GOOD.replace("count/1, adopt/1", "adopt/1"))).spec.proves == ["adopt/1"]


def test_the_path_is_shown_as_it_would_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(refused(tmp_path, "x: 1")).startswith("case.yaml:1:1:")


def test_two_files_with_one_id(tmp_path: Path) -> None:
    paths = [write(tmp_path, GOOD, "a.yaml"), write(tmp_path, GOOD, "b.yaml")]
    first, second = load_all(paths)
    assert isinstance(first, Loaded)
    assert isinstance(second, SpecError)
    assert "b.yaml:2:5: the id 'adopt/sample' is already that of" in str(second)


def test_a_step_may_be_compared_with_itself_in_another_arm(tmp_path: Path) -> None:
    same = GOOD.replace("counted: {of: eight}", "same_as: {of: eight, to: eight, arm: again, as: count/1}")
    assert load(write(tmp_path, same.replace("steps:", "arms: {again: {one_by_one: true}}\nsteps:")))


def test_a_position_counts_from_0(tmp_path: Path) -> None:
    assert load(write(tmp_path, GOOD.replace("{head_of: system, tokens: 2B}", "{changed: system, at: 0}")))


def test_arguments_that_do_not_fit_hide_no_other_mistake(tmp_path: Path) -> None:
    bad = GOOD.replace("counted: {of: eight}", "same_as: {of: eight}").replace("at_least", "atleast")
    assert [line for line, _, _ in places(refused(tmp_path, bad))] == [18, 19]
    paths = [write(tmp_path, bad, "a.yaml"), write(tmp_path, GOOD.replace("title:", "titel:"), "b.yaml")]
    assert [type(found) for found in load_all(paths)] == [SpecError, SpecError]


def test_spec_files_are_found_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "folder.yaml").mkdir()
    for name in ("b/two.yaml", "a.yml", "spec.schema.json"):
        write(tmp_path, "", name)
    assert [path.name for path in spec_files(tmp_path)] == ["a.yml", "two.yaml"]


def test_every_shipped_spec_loads_under_the_id_of_its_path() -> None:
    root = Path(__file__).parents[2] / "specs"
    loaded = list(load_all(spec_files(root)))
    assert loaded
    wrong = [str(found) for found in loaded if isinstance(found, SpecError)]
    assert not wrong, "\n".join(wrong)
    ids = {found.path: found.spec.id for found in loaded if isinstance(found, Loaded)}
    assert all(path == (root / id_).with_suffix(".yaml") for path, id_ in ids.items()), ids

"""Facts: what the dialect declares, and what a few small requests then show."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.dialect import Dialect, dialects
from conformance.probe import TargetError, plain_ids, recognise, trial
from conformance.target import Target
from conformance.vocabulary import ASCII, LETTERS, Ids, Letters, Words
from tests.conformance.fakeserver import Behaviour, Handler, fake_server
from tests.conformance.targets import TEXT, dialect, fake_target, options

INFO = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'


def test_a_family_is_looked_for_with_get_alone() -> None:
    with fake_target() as (target, server):
        asked = len(server.state.seen)
        recognise(target, dialects())
        assert len(server.state.seen) == asked


@pytest.mark.parametrize(("told", "claimed"), [("whole", False), ("paged", True)])
def test_what_is_not_claimed_follows_from_what_the_server_tells(told: str, claimed: bool) -> None:
    sources = {"sharing": {"get": "/info", "path": "store", "map": {"paged": "all", "whole": "one_shot"}}}
    known = dialect(facts=sources, claims={"adopt/1": {"reason": "taken", "when": {"sharing": "one_shot"}}})
    with fake_target(Behaviour(pages={"/info": {"store": told}}), known) as (target, _):
        assert ("adopt/1" not in target.facts.claims) is claimed


def test_facts_come_from_where_the_dialect_says() -> None:
    metrics = {"get": "/metrics", "metric": "vllm:cache_config_info"}
    sources = {
        "block": {**metrics, "label": "block_size"},
        "granule": {**metrics, "label": "block_size"},
        "pool_blocks": {**metrics, "label": "num_gpu_blocks", "plus": -1},
        "bytes_per_block": {"get": "/info", "path": "size"},
        "chunk": {"get": "/info", "path": "absent"},
        "min_prefix": {"get": "/nowhere", "path": "x"},
        "lookahead": {"get": "/metrics", "metric": "absent"},
        "sharing": {"get": "/info", "path": "store", "map": {"paged": "all"}},
        "settle": 0.0,
    }
    pages: dict[str, dict[str, Any] | str] = {
        "/metrics": INFO,
        "/info": {"size": 512, "store": "paged", "v": "9"},
    }
    known = dialect(facts=sources, version={"get": "/info", "path": "v"})
    with fake_target(Behaviour(pages=pages), known) as (target, _):
        facts = target.facts
    assert (facts.block, facts.granule, facts.pool_blocks) == (16, 16, 99)
    assert (facts.bytes_per_block, facts.chunk) == (512, None)
    assert (facts.min_prefix, facts.lookahead) == (0, 0)
    assert (facts.sharing, facts.version, facts.model) == ("all", "9", "fake-model")
    assert facts.machine["cores"].isdigit()


@pytest.mark.parametrize(("said", "margin"), [(None, 0.02), (0.001, 0.001)])
def test_the_margin_is_the_dialects_unless_the_user_knows_better(said: float | None, margin: float) -> None:
    known = dialect(facts={"granule": 4, "margin": 0.02})
    with fake_target(known=known, margin=said) as (target, _):
        assert target.facts.margin == margin


@pytest.mark.parametrize(("said", "chunk"), [(None, 2048), (512, 512)])
def test_the_chunk_is_the_dialects_unless_the_user_knows_better(said: int | None, chunk: int) -> None:
    known = dialect(facts={"granule": 4, "chunk": 2048})
    with fake_target(known=known, chunk=said) as (target, _):
        assert target.facts.chunk == chunk


def test_a_word_that_the_dialect_does_not_know_is_not_said() -> None:
    sources = {"granule": 4, "sharing": {"get": "/info", "path": "store", "map": {"paged": "all"}}}
    with fake_target(Behaviour(pages={"/info": {"store": "odd"}}), dialect(facts=sources)) as (target, _):
        assert target.facts.sharing == "unknown"


def test_a_value_that_is_no_fact_is_refused_with_its_name() -> None:
    sources = {"block": {"get": "/info", "path": "b"}}
    with (
        pytest.raises(TargetError, match=r"says 'many' for block: Input should be a valid integer"),
        fake_target(Behaviour(pages={"/info": {"b": "many"}}), dialect(facts=sources)),
    ):
        raise AssertionError("never probed")


def test_abilities_are_those_that_a_reply_shows() -> None:
    with fake_target() as (target, _):
        facts = target.facts
    assert facts.takes_ids
    assert facts.returns_ids
    assert facts.has_logprobs
    assert facts.reports_cached
    assert facts.has_stats
    assert facts.has_salt
    assert facts.has_reset
    assert facts.grade == "bits"


@pytest.mark.parametrize(
    ("behaviour", "missing", "grade"),
    [
        (Behaviour(returns_ids=False), "returns_ids", "text"),
        (Behaviour(logprobs=False), "has_logprobs", "tokens"),
        (Behaviour(refuses_logprobs=True), "has_logprobs", "tokens"),
        (Behaviour(cached="null"), "reports_cached", "bits"),
        (Behaviour(cached="absent"), "reports_cached", "bits"),
        (Behaviour(pages={"/stats": "nothing"}), "has_stats", "bits"),
        (Behaviour(reset_answers=[{"cleared": False}]), "has_reset", "bits"),
    ],
    ids=["no ids", "no logprobs", "refused logprobs", "null", "absent", "no statistics", "no reset"],
)
def test_an_ability_that_no_reply_shows_is_not_there(
    behaviour: Behaviour, missing: str, grade: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.target.RESET_TIMEOUT", 0.1)
    with fake_target(behaviour) as (target, _):
        assert not getattr(target.facts, missing)
        assert target.facts.grade == grade


@pytest.mark.parametrize(("path", "version"), [("fingerprint", "1.2"), ("absent", ""), (None, "")])
def test_a_version_may_stand_in_the_replies(path: str | None, version: str) -> None:
    with fake_target(Behaviour(), plain(answer={"version": path})) as (target, _):
        assert target.facts.version == version


def test_a_server_that_lists_its_model_is_shown_by_that_name() -> None:
    with fake_target(Behaviour(), plain(ask={"model": "default"})) as (target, server):
        assert target.facts.model == "fake-model"
        assert server.state.seen[-1]["model"] == "default"


def test_an_endpoint_s_cache_is_never_reset() -> None:
    with fake_target(how="endpoint") as (target, server):
        assert not target.facts.has_reset
        assert server.state.resets == 0


def test_refused_logprobs_are_not_asked_for_again() -> None:
    with fake_target(Behaviour(refuses_logprobs=True)) as (_, server):
        assert ["logprobs" in body for body in server.state.seen][:2] == [True, False]


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        (Behaviour(fault="status", status=404), "status 404: out of order"),
        (Behaviour(fault="no-done"), "without"),
    ],
)
def test_a_server_that_cannot_complete_is_no_target(behaviour: Behaviour, why: str) -> None:
    message = rf"did not answer POST /v1/completions like an LLM server: .*{why}"
    with pytest.raises(TargetError, match=message), fake_target(behaviour):
        raise AssertionError("never probed")


@pytest.mark.parametrize(
    ("body", "came"),
    [
        (
            '{"choices": "no"}',
            r"choices are no list.* \(it sent application/json, '\{\"choices\": \"no\"\}'\)",
        ),
        ('{"hello": "world"}', r"no completion came back \(it sent application/json, '\{\"hello\".*\)"),
        ("<html>" + "x" * 200, r"an HTML page \(it sent application/json, '<html>x{74}'…\)"),
    ],
)
def test_a_web_server_that_is_no_llm_is_refused(
    body: str, came: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "_complete", lambda self, data: self._reply(200, body.encode()))
    wanted = rf"^http://127\.0\.0\.1:\d+ did not .*{came}; expected a completion: .* a finish_reason$"
    with pytest.raises(TargetError, match=wanted), fake_target(Behaviour(pages={"/health": "<html>"})):
        raise AssertionError("never probed")


def test_plain_ids_are_the_letters_that_come_back_one_to_one() -> None:
    with fake_target() as (target, _):
        assert isinstance(target.vocabulary, Ids)
        plain = target.vocabulary.plain
    assert plain == tuple(sorted(map(ord, LETTERS)))
    assert set(range(ord("A"), ord("z") + 1)) <= set(plain)
    assert not {ord(" "), ord("|"), ord("×"), 0xAD} & set(plain)


def test_a_tokenizer_that_merges_gives_what_it_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_target() as (target, _):
        monkeypatch.setattr(target, "encode", lambda text: [7, 9] if "!" in text else [9, 8])
        assert plain_ids(target) == [7, 8, 9]


@pytest.mark.parametrize("change", [{"tokenize": None}, {"tokenize": {"post": "/nowhere"}}])
def test_without_known_ids_the_target_gets_words(change: dict[str, Any]) -> None:
    with fake_target(Behaviour(), dialect(**change)) as (target, server):
        assert isinstance(target.vocabulary, Words)
        assert not target.facts.takes_ids
        assert all(isinstance(body["prompt"], str) for body in server.state.seen)


def plain(**changes: Any) -> Dialect:
    return Dialect.model_validate(TEXT | changes)


def test_characters_a_token_are_measured() -> None:
    """The fake server takes a word for a token: four letters and a space."""
    with fake_target(Behaviour(returns_ids=False), plain()) as (target, _):
        assert isinstance(target.vocabulary, Words)
        assert target.vocabulary.per_token == 5.0
        assert target.facts.lcp_slack == 2
        assert not target.facts.has_salt


@pytest.mark.parametrize(("encoding", "letters"), [("utf-32-le", LETTERS), ("utf-8", ASCII)])
def test_where_letters_are_tokens_prompts_are_letters(
    encoding: str, letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 4 if encoding == "utf-32-le" else 1
    monkeypatch.setattr(
        "tests.conformance.fakeserver._tokens", lambda text: list(text.encode(encoding))[::size]
    )
    with fake_target(Behaviour(), plain()) as (target, _):
        assert isinstance(target.vocabulary, Letters)
        assert target.vocabulary.letters == letters
        assert target.facts.lcp_slack == 0
        outcome = target.send(trial(target, 500, seed=3))
    assert outcome.prompt_tokens == 500


def test_without_usage_the_length_stays_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.probe._prompt_tokens", lambda target, text: None)
    with fake_target(Behaviour(), plain()) as (target, _):
        assert isinstance(target.vocabulary, Words)
        assert target.vocabulary.per_token == 4.0


def test_a_count_that_does_not_grow_is_no_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.probe._prompt_tokens", lambda target, text: 5)
    with fake_target(Behaviour(), plain()) as (target, _):
        assert isinstance(target.vocabulary, Words)
        assert target.vocabulary.per_token == 4.0


@pytest.mark.parametrize("granule", [1, 4, 16, 48, 128, 256])
def test_an_undeclared_granule_is_measured(granule: int) -> None:
    with fake_target(Behaviour(granule=granule), plain(facts={})) as (target, _):
        assert target.facts.granule == granule
        assert target.facts.sharing == "all"


def test_an_undeclared_granule_is_measured_with_ids_too() -> None:
    with fake_target(Behaviour(granule=32), dialect(facts={})) as (target, _):
        assert target.facts.granule == 32


@pytest.mark.parametrize("behaviour", [Behaviour(keeps=False), Behaviour(cached="absent")])
def test_a_granule_that_nothing_shows_stays_unknown(behaviour: Behaviour) -> None:
    with fake_target(behaviour, plain(facts={})) as (target, _):
        assert target.facts.granule is None
        assert target.facts.sharing == "unknown"


def test_a_dialect_without_signs_fits_any_server() -> None:
    with fake_server() as server:
        target = Target(server.url, options(), dialect=None)
        target.close()
    assert target.dialect.dialect == "generic"

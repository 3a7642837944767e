"""Heads of a stored prompt: what is asked, in which order, and what counts as found."""

from __future__ import annotations

import math

import pytest

from conformance import calibrate, preflight
from conformance.dialect import Dialect
from conformance.heads import Look, contradicted, head_of, is_exact, look
from conformance.probe import trial
from conformance.vocabulary import Letters
from tests.conformance.fakeserver import Behaviour
from tests.conformance.targets import TEXT, fake_target


@pytest.mark.parametrize("heads", [preflight.HEADS, calibrate._HEADS])
@pytest.mark.parametrize("granule", range(1, 257))
def test_the_heads_show_every_granule_up_to_256(heads: tuple[int, ...], granule: int) -> None:
    floored = [head // granule * granule for head in heads if head >= granule]
    assert math.gcd(*floored) == granule


@pytest.mark.parametrize("granule", [1024, 2048, 4096])
def test_the_long_heads_show_the_coarse_granules(granule: int) -> None:
    assert math.gcd(*(head // granule * granule for head in calibrate._LONG_HEADS)) == granule


def test_a_prompt_is_stored_and_its_heads_follow_longest_first() -> None:
    with fake_target() as (target, server):
        seen_before = len(server.state.seen)
        found = look(target, 100, (90, 50), seed=1)
        prompts = [body["prompt"] for body in server.state.seen[seen_before:]]
        salts = {body["cache_salt"] for body in server.state.seen[seen_before:]}
    whole, *heads = prompts
    assert [len(prompt) for prompt in prompts] == [100, 114, 74]
    assert [head[:n] for head, n in zip(heads, (90, 50), strict=True)] == [whole[:90], whole[:50]]
    assert len(salts) == 1
    assert found == Look((90, 50), (88, 48))


def test_a_head_of_text_ends_with_a_whole_word() -> None:
    with fake_target(Behaviour(), Dialect.model_validate(TEXT)) as (target, _):
        whole = trial(target, 100, seed=1)
        head = head_of(target, whole, 100, 50).prompt_text or ""
    words = (whole.prompt_text or "").split()
    assert head.split()[:45] == words[:45]


@pytest.mark.parametrize("granule", [1, 4, 16])
def test_where_letters_are_tokens_heads_are_cut_at_letters(
    granule: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut at words of 16 letters and a space, every count would be a multiple of 17."""
    monkeypatch.setattr("tests.conformance.fakeserver._tokens", list)
    known = Dialect.model_validate(TEXT | {"facts": {"granule": granule}})
    with fake_target(Behaviour(granule=granule), known) as (target, _):
        assert isinstance(target.vocabulary, Letters)
        assert look(target, 560, preflight.HEADS, seed=1).step == granule


def test_a_request_that_fails_reports_nothing() -> None:
    with fake_target() as (target, server):
        server.state.behaviour.fault = "status"
        assert look(target, 100, (90, 50), seed=1).cached == (None, None)


@pytest.mark.parametrize(
    ("cached", "hits", "missed", "step"),
    [
        ((64, 32, 16), [64, 32, 16], [], 16),
        ((0, 32, 16), [32, 16], [70], 16),
        ((64, 0, 16), [64, 16], [40], 16),
        ((64, 32, 0), [64, 32], [], 32),
        ((3, 3, 16), [16], [70, 40], 16),
        ((None, 32, 16), [32, 16], [], 16),
        ((0, 0, 0), [], [], None),
        ((None, None, None), [], [], None),
    ],
)
def test_what_was_found(
    cached: tuple[int | None, ...], hits: list[int], missed: list[int], step: int | None
) -> None:
    """3 of 70 is what a template gives every prompt; a short head may be too short to be kept."""
    seen = Look((70, 40, 20), cached)
    assert (list(seen.hits.values()), seen.missed, seen.step) == (hits, missed, step)


@pytest.mark.parametrize(
    ("declared", "partial", "exact", "speaks"),
    [
        (16, False, True, False),
        (None, False, True, False),
        (32, False, True, True),
        (32, True, True, False),
        (8, False, True, True),
        (8, False, False, False),
        (24, False, False, True),
    ],
)
def test_counts_speak_against_a_declared_granule(
    declared: int | None, partial: bool, exact: bool, speaks: bool
) -> None:
    said = contradicted(declared, Look((70, 40, 20), (64, 32, 16)), partial, exact)
    assert (said is not None) == speaks
    assert said is None or said == (
        f"granule {declared} declared, but cached counts are multiples of 16 (16, 32, 64)"
    )


def test_without_a_hit_nothing_speaks_against_it() -> None:
    assert contradicted(16, Look((70, 40), (0, 0)), False, True) is None


def test_lengths_are_exact_in_ids_and_not_in_words() -> None:
    with fake_target() as (target, _):
        assert is_exact(target)
    with fake_target(Behaviour(), Dialect.model_validate(TEXT)) as (target, _):
        assert not is_exact(target)

"""Prompts drawn the same everywhere; longer draws begin with shorter ones."""

from __future__ import annotations

import pytest

from conformance.vocabulary import LETTERS, WORDS, Ids, Letters, Words

PLAIN = list(range(300, 400))


def ids() -> Ids:
    return Ids(PLAIN, lambda text: [ord(letter) for letter in text])


def test_ids_are_plain_and_depend_on_the_seed_alone() -> None:
    drawn = ids().ids(500, 227)
    assert set(drawn) <= set(PLAIN)
    assert drawn == ids().ids(500, 227)
    assert drawn != ids().ids(500, 228)
    assert ids().ids(100, 227) == drawn[:100]


def test_the_draw_is_the_same_in_every_release() -> None:
    assert Ids([10, 20, 30], lambda text: []).ids(8, 227) == [20, 30, 30, 10, 30, 30, 20, 30]


def test_text_is_whole_words_worth_the_tokens() -> None:
    for per_token in (1.0, 4.0, 5.5):
        text = Words(per_token).text(400, 227)
        assert abs(len(text) - 400 * per_token) <= 3
        assert set(text.split(" ")) <= set(WORDS)
    assert Words(4.0).text(1, 1) in WORDS


def test_longer_text_begins_with_shorter_text() -> None:
    assert Words(4.0).text(400, 5).startswith(Words(4.0).text(77, 5) + " ")


def test_words_are_distinct_and_of_one_length() -> None:
    assert len(set(WORDS)) == len(WORDS) >= 128
    assert {len(word) for word in WORDS} == {4}


@pytest.mark.parametrize("count", [1, 16, 24, 40, 500])
def test_letters_have_the_exact_length(count: int) -> None:
    text = Letters(LETTERS).text(count, 227)
    assert len(text) == count
    assert set(text) <= {*LETTERS, " "}
    assert max(map(len, text.split(" "))) <= 16


def test_letters_never_end_on_a_space() -> None:
    """Sixteen letters and the space would be seventeen."""
    assert Letters(LETTERS).text(17, 1) == Letters(LETTERS).text(16, 1)


def test_longer_letters_begin_with_shorter_ones() -> None:
    vocabulary = Letters(LETTERS)
    assert vocabulary.text(400, 5).startswith(vocabulary.text(77, 5))
    assert vocabulary.text(400, 5) == vocabulary.text(400, 5) != vocabulary.text(400, 6)


def test_words_of_letters_begin_differently() -> None:
    initials = [word[0] for word in Letters(LETTERS).text(200 * 17, 0).split()]
    assert len(set(initials)) == len(initials) == 200


def test_letters_spell_no_special_token() -> None:
    assert "|" not in LETTERS
    assert all(letter.isprintable() and not letter.isspace() for letter in LETTERS)


def test_each_kind_refuses_the_other() -> None:
    assert ids().is_ids
    assert not Words(1.0).is_ids
    assert ids().encode("ab") == [97, 98]
    with pytest.raises(ValueError, match="text only"):
        Words(1.0).encode("ab")
    with pytest.raises(TypeError, match="takes text"):
        Words(1.0).ids(1, 1)


def test_messages_for_a_target_of_ids_are_drawn_as_text() -> None:
    assert Ids([97], lambda text: [], Letters("abcdef")).text(20, 3) == Letters("abcdef").text(20, 3)
    assert Ids([97], lambda text: []).text(20, 3) == Words(4.0).text(20, 3)

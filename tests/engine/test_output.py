"""A choice's text: whole characters, and nothing of a stop string."""

from __future__ import annotations

import pytest

from engine.output import Output, pieces
from engine.tokenizer import ByteTokenizer

CODEC = ByteTokenizer()


def said(text: str, *stop: str) -> tuple[list[str], Output]:
    output = Output(CODEC, stop)
    texts = []
    for token in text.encode():
        if output.stopped:
            break
        texts.append(output.push(token))
    return texts, output


def test_without_stop_strings_each_token_is_said_at_once() -> None:
    pieces, output = said("abc")
    assert pieces == ["a", "b", "c"]
    assert output.finish() == ""


def test_a_character_is_held_until_its_last_byte() -> None:
    pieces, _ = said("a€b")
    assert pieces == ["a", "", "", "€", "b"]


def test_a_broken_character_is_let_go_in_the_end() -> None:
    output = Output(CODEC, ())
    assert output.push(0xE2) == ""
    assert output.finish() == "�"


@pytest.mark.parametrize(
    ("text", "stop", "before"),
    [("hello END more", ("END",), "hello "), ("aab", ("ab",), "a"), ("xyab", ("b", "ya"), "x")],
)
def test_text_ends_before_the_earliest_stop_string(text: str, stop: tuple[str, ...], before: str) -> None:
    pieces, output = said(text, *stop)
    assert "".join(pieces) + output.finish() == before
    assert output.stopped


def test_a_possible_stop_string_is_held_back_and_said_when_it_was_none() -> None:
    pieces, output = said("EN!", "END")
    assert pieces == ["", "", "EN!"]
    assert not output.stopped


def test_what_is_held_back_is_said_when_the_choice_ends() -> None:
    pieces, output = said("xEN", "END")
    assert pieces == ["x", "", ""]
    assert output.finish() == "EN"


def test_a_stop_string_that_may_not_stop_yet_is_text() -> None:
    output = Output(CODEC, ("ab",))
    texts = [
        output.push(token, may_stop)
        for token, may_stop in zip(b"abab", (False, False, True, True), strict=True)
    ]
    assert ("".join(texts), output.stopped) == ("ab", True)


def test_a_stop_string_may_begin_before_it_may_stop() -> None:
    output = Output(CODEC, ("ab",))
    assert (output.push(ord("a"), False), output.push(ord("b")), output.stopped) == ("", "", True)


def test_pieces_of_a_text_hold_whole_characters_and_add_up() -> None:
    assert pieces(CODEC, list("a€b".encode())) == ["a", "", "", "€", "b"]
    assert pieces(CODEC, list("a€".encode())[:-1]) == ["a", "", "\ufffd"]

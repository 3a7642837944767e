"""The built-in tokenizer against its promises and against the `tokenizers` library's reading of the same."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference

from engine.export import tokenizer_json
from engine.tokenizer import CHAT_END, CHAT_START, EOS, SPECIALS, ByteTokenizer, HFTokenizer

TOKENIZER = ByteTokenizer()
PLAIN = TOKENIZER.plain_ids()
REFERENCE = Reference.from_str(json.dumps(tokenizer_json(TOKENIZER)))
TEXT = st.text() | st.lists(st.sampled_from([*SPECIALS, "é", "Ж", "<|im", "|>", "\u00ff", "日", "a "])).map(
    "".join
)


def test_vocabulary_is_512_ids_with_the_specials_last() -> None:
    assert TOKENIZER.vocab_size == 512
    assert [TOKENIZER.id_of(text) for text in SPECIALS] == [509, 510, 511]


def test_a_reply_ends_at_the_end_of_text_or_of_a_message() -> None:
    assert TOKENIZER.eos_ids == {509, 511}


def test_bytes_and_specials_encode_as_documented() -> None:
    assert TOKENIZER.encode("a <|im_start|>\n日") == [97, 32, 510, 10, 0xE6, 0x97, 0xA5]


def test_a_long_text_encodes_as_its_characters_do() -> None:
    text = "éЖ日a" * 10_000
    assert TOKENIZER.encode(text) == TOKENIZER.encode("éЖ日a") * 10_000


def test_a_two_byte_letter_is_one_id() -> None:
    assert len(TOKENIZER.encode("éЖÀ")) == 3
    assert TOKENIZER.encode("À") == [256]


@given(TEXT)
def test_any_text_survives(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(TEXT)
def test_ids_are_those_of_the_reference_library(text: str) -> None:
    assert TOKENIZER.encode(text) == REFERENCE.encode(text).ids


@given(st.lists(st.integers(0, 511)))
def test_text_is_that_of_the_reference_library(ids: list[int]) -> None:
    assert TOKENIZER.decode(ids) == REFERENCE.decode(ids, skip_special_tokens=False)


@given(st.lists(st.sampled_from(PLAIN)))
def test_any_sequence_of_plain_ids_encodes_to_itself(ids: list[int]) -> None:
    assert TOKENIZER.encode(TOKENIZER.decode(ids)) == ids


def test_a_bar_or_a_space_would_not_come_back() -> None:
    """Why the two are no plain ids: a special token could be spelled, a word boundary could be trimmed."""
    spelled = list(EOS.encode())
    assert TOKENIZER.encode(TOKENIZER.decode(spelled)) != spelled
    assert not {ord("|"), ord(" ")} & set(PLAIN)


def test_plain_ids_have_one_printable_character_each_of_their_own() -> None:
    texts = [TOKENIZER.token_text(i) for i in PLAIN]
    assert len(set(texts)) == len(PLAIN) == 346
    assert all(len(t) == 1 and t.isprintable() and not t.isspace() for t in texts)
    assert not any(unicodedata.combining(t) for t in texts)


@pytest.mark.parametrize(("token", "text"), [(0, "<0x00>"), (10, "<0x0A>"), (0xC3, "<0xC3>"), (509, EOS)])
def test_other_ids_have_a_printable_form_too(token: int, text: str) -> None:
    assert TOKENIZER.token_text(token) == text


def test_half_a_character_decodes_to_the_replacement_character() -> None:
    assert TOKENIZER.decode([97, 0xC3]) == "a\ufffd"


def test_a_lone_surrogate_encodes_as_a_question_mark() -> None:
    assert TOKENIZER.encode("\ud800") == [ord("?")]


@pytest.mark.parametrize("token", [-1, 512])
def test_an_unknown_id_is_named(token: int) -> None:
    with pytest.raises(ValueError, match=rf"token id {token} is outside the vocabulary 0\.\.511"):
        TOKENIZER.decode([97, token])


CHAT = [{"role": "system", "content": "be é"}, {"role": "user", "content": "hi"}]
RENDERED = "<|im_start|>system\nbe é<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"


def test_a_chat_is_rendered_by_the_template() -> None:
    assert TOKENIZER.decode(TOKENIZER.render_chat(CHAT, add_generation_prompt=False)) == RENDERED
    assert TOKENIZER.decode(TOKENIZER.render_chat(CHAT)) == RENDERED + "<|im_start|>assistant\n"


def test_chat_marks_are_special_ids() -> None:
    ids = TOKENIZER.render_chat(CHAT)
    assert ids.count(TOKENIZER.id_of(CHAT_START)) == 3
    assert ids.count(TOKENIZER.id_of(CHAT_END)) == 2


class FakeHF:
    """What the wrapper uses of a transformers tokenizer: ids are code points, 0 is special, 1 unseen."""

    eos_token_id = 0
    all_special_ids = (0,)
    chat_template: str | None = "template"

    def __len__(self) -> int:
        return 128

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * add_special_tokens + [ord(c) for c in text.lower()]

    def decode(self, ids: list[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert not skip_special_tokens
        assert not clean_up_tokenization_spaces
        return "".join(map(chr, ids))

    def convert_ids_to_tokens(self, token: int) -> str:
        return f"<{token}>"

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool, tokenize: bool
    ) -> str:
        assert not tokenize
        return "".join(m["content"] for m in messages) + ">" * add_generation_prompt


def test_a_wrapped_tokenizer_keeps_its_own_special_tokens() -> None:
    assert HFTokenizer(FakeHF()).encode("ab") == [0, 97, 98]


def test_a_wrapped_tokenizers_eos_is_the_models_where_named() -> None:
    assert HFTokenizer(FakeHF()).eos_ids == {0}
    assert HFTokenizer(FakeHF(), [3, 4]).eos_ids == {3, 4}


def test_wrapped_plain_ids_print_and_round_trip() -> None:
    plain = HFTokenizer(FakeHF()).plain_ids()
    assert ord("a") in plain
    assert not {0, 1, ord(" "), ord("A")} & set(plain)


def test_wrapped_token_text_is_printable() -> None:
    wrapped = HFTokenizer(FakeHF())
    assert (wrapped.token_text(97), wrapped.token_text(1)) == ("a", "<1>")
    with pytest.raises(ValueError, match="token id 128 is outside"):
        wrapped.token_text(128)


def test_wrapped_chat_gets_no_second_set_of_special_tokens() -> None:
    assert HFTokenizer(FakeHF()).render_chat([{"role": "user", "content": "b"}]) == [98, ord(">")]


def test_a_tokenizer_without_a_chat_template_says_so() -> None:
    fake = FakeHF()
    fake.chat_template = None
    with pytest.raises(ValueError, match="no chat template; use /v1/completions"):
        HFTokenizer(fake).render_chat([{"role": "user", "content": "b"}])

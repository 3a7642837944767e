"""Length expressions mean what a reader takes them for, and nonsense is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.lengths import LengthError, UnknownHere, check, constant, evaluate

SYMBOLS = {"B": 32, "G": 16, "C": 256, "pool": 1000, "prefix": 3700}


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        (7, 7),
        pytest.param("7", 7, id="a number as text"),
        ("8B+1", 257),
        ("3C-1", 767),
        ("pool/2", 500),
        ("pool / 3", 333),
        ("prefix", 3700),
        ("2G", 32),
        ("2*(B+G)", 96),
        ("pool/2B", 15),
        ("B-40", -8),
        ("B*2/3", 21),
        ("max(2, 1G-1)", 15),
        ("max(2,G-16)+1", 3),
        ("max(B, C, G)", 256),
    ],
)
def test_value(expr: int | str, value: int) -> None:
    assert evaluate(expr, SYMBOLS) == value


@pytest.mark.parametrize(
    "expr",
    [
        "",
        " ",
        "8 B",
        "B**2",
        "B//2",
        "-B",
        "1.5B",
        "B(2)",
        "max(B)",
        "min(B, C)",
        "(B, C)",
        "max(B, C)(B)",
        "2^B",
        "(B",
        "08B 1",
        "B and C",
        "B" * 81,
        "lambda",
        "é",
    ],
)
def test_nonsense_is_refused_with_an_example(expr: str) -> None:
    with pytest.raises(LengthError, match=r"8B\+1"):
        evaluate(expr, SYMBOLS)


def test_unknown_symbol_names_the_legal_ones() -> None:
    with pytest.raises(LengthError, match=r"unknown symbol 'Q'; legal: B, G, C, pool.*, n$"):
        check("2Q", ["n"])


def test_unknown_symbol_is_refused_when_evaluated_too() -> None:
    with pytest.raises(LengthError, match="unknown symbol 'n'"):
        evaluate("n+1", SYMBOLS)


def test_a_ladder_variable_is_legal_where_it_is_declared() -> None:
    check("n+1", ["n"])
    check(3)
    assert evaluate("n+1", {"n": 4}) == 5


def test_a_symbol_the_target_lacks_is_told_apart_from_a_mistake() -> None:
    with pytest.raises(UnknownHere, match="does not tell min_prefix") as caught:
        evaluate("min_prefix+1", SYMBOLS)
    assert caught.value.symbol == "min_prefix"


def test_division_by_zero_is_named() -> None:
    with pytest.raises(LengthError, match="division by zero"):
        evaluate("B/0", SYMBOLS)


@pytest.mark.parametrize("expr", [10_000_001, "10000002", "3*4000000", "pool*20000"])
def test_a_length_has_a_ceiling(expr: int | str) -> None:
    with pytest.raises(LengthError, match="more than 10,000,000 tokens"):
        evaluate(expr, SYMBOLS)


@pytest.mark.parametrize("expr", [10_000_000, "5000000*2", "pool*10000"])
def test_the_ceiling_itself_is_a_length(expr: int | str) -> None:
    assert evaluate(expr, SYMBOLS) == 10_000_000


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (0, "0 is 0 tokens; at least 1"),
        (-3, "-3 is -3 tokens"),
        ("3-9", "'3-9' is -6 tokens"),
        ("1/2", "'1/2' is 0 tokens"),
        ("8/0", "division by zero"),
        ("pool/(2-2)", "division by zero"),
        ("B+20000000", "more than 10,000,000"),
        (int("9" * 200), "9… is more than 10,000,000"),
    ],
)
def test_what_can_be_a_length_on_no_target_is_refused_at_once(expr: int | str, message: str) -> None:
    with pytest.raises(LengthError, match=message):
        check(expr)


@pytest.mark.parametrize("expr", [1, "9-8", "B-40", "pool/B", "pool/2B", "0+B", "B-B+1"])
def test_what_may_be_a_length_somewhere_is_left_to_the_target(expr: int | str) -> None:
    check(expr)


@pytest.mark.parametrize(("expr", "value"), [(16, 16), ("8*2", 16), ("reply", None), ("B-B", None)])
def test_a_constant_is_the_same_everywhere(expr: int | str, value: int | None) -> None:
    assert constant(expr) == value


@given(st.text(max_size=90))
def test_any_text_is_a_number_or_a_length_error(text: str) -> None:
    try:
        value = evaluate(text, SYMBOLS)
    except LengthError:
        return
    assert isinstance(value, int)


@given(st.integers(0, 50), st.integers(0, 50))
def test_coefficient_and_offset(times: int, more: int) -> None:
    assert evaluate(f"{times}B+{more}", SYMBOLS) == times * 32 + more

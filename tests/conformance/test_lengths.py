"""Length expressions mean what a reader takes them for, and nonsense is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.lengths import LengthError, UnknownHere, check, evaluate

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

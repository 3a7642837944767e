"""Length expressions: `8B+1`, `3C-1`, `pool/2`, `prefix`, `max(2, 1G-1)`.

Knows the grammar and its symbols. Does not know a target's numbers (`plan.py` brings them) or where an
expression stood in a file. Division rounds down, since a length is a whole number of tokens; a
coefficient binds tighter than anything else (`pool/2B` is `pool/(2*B)`).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Mapping

SYMBOLS = ("B", "G", "C", "pool", "min_prefix", "prefix", "reply")
"""Block, granule, chunk, pool and minimum prefix of the target; prefix and reply of the scale. In tokens."""

_LEGAL = re.compile(r"[A-Za-z0-9_+\-*/(), ]*")
_COEFFICIENT = re.compile(r"\b(\d+)([A-Za-z]\w*)")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
_MAX = "max"
_LONGEST = 80

CEILING = 10_000_000
"""Tokens; far above any context, and far below what no machine could hold."""


class LengthError(ValueError):
    """An expression that means no number; the message says why and what would."""


class UnknownHere(LengthError):
    """A legal symbol that has no value on this target: nothing is wrong with the expression."""

    def __init__(self, symbol: str) -> None:
        super().__init__(f"the target does not tell {symbol}")
        self.symbol = symbol


def evaluate(expr: int | str, symbols: Mapping[str, int]) -> int:
    """Value of `expr` in tokens; may be negative.

    Raises UnknownHere for a word of SYMBOLS that `symbols` lacks, LengthError for everything else.
    """
    value = expr if isinstance(expr, int) else _value(_parse(expr), symbols, expr)
    if value > CEILING:
        raise LengthError(f"{_shown(expr)} is more than {CEILING:,} tokens, the most that a length may be")
    return value


def check(expr: int | str, variables: Collection[str] = (), least: int = 1) -> None:
    """Raise LengthError unless `expr` is made of numbers, SYMBOLS and `variables`, and can be a length.

    `least` is 0 for a position, which counts from there.
    """
    unknown = next((name for name in names(expr) if name not in (*SYMBOLS, *variables)), None)
    if unknown is not None:
        raise LengthError(f"{expr!r}: unknown symbol {unknown!r}; {_legal(variables)}")
    value = constant(expr)
    if value is not None and value < least:
        raise LengthError(f"{_shown(expr)} is {_shown(value)} tokens; at least {least} is needed")
    if isinstance(expr, str):
        _check_constants(_parse(expr), expr)


def names(expr: int | str) -> list[str]:
    """The words of an expression, each once, in order. Raises LengthError for what is none."""
    nodes = [] if isinstance(expr, int) else ast.walk(_parse(expr))
    found = (node.id for node in nodes if isinstance(node, ast.Name))
    return [name for name in dict.fromkeys(found) if name != _MAX]


def constant(expr: int | str) -> int | None:
    """Value of an expression that is the same on every target, else None. Raises LengthError."""
    return None if names(expr) else evaluate(expr, {})


def _check_constants(tree: ast.expr, expr: str) -> None:
    """Numbers and divisors that are wrong whatever the symbols around them are."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            evaluate(ast.unparse(node), {})
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Div)
            and not names(ast.unparse(node.right))
        ):
            _combine(ast.BinOp(ast.Constant(1), node.op, node.right), {}, expr)


def _parse(expr: str) -> ast.expr:
    if not expr.strip() or len(expr) > _LONGEST or not _LEGAL.fullmatch(expr):
        raise _nonsense(expr)
    try:
        tree = ast.parse(_COEFFICIENT.sub(r"(\1*\2)", expr.strip()), mode="eval").body
    except SyntaxError:
        raise _nonsense(expr) from None
    if not all(_is_legal(node) for node in ast.walk(tree)):
        raise _nonsense(expr)
    return tree


def _is_legal(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == _MAX and len(node.args) > 1
    return isinstance(node, (ast.BinOp, ast.Name, ast.Load, *_OPERATORS))


def _value(node: ast.expr, symbols: Mapping[str, int], expr: str) -> int:
    if isinstance(node, ast.BinOp):
        return _combine(node, symbols, expr)
    if isinstance(node, ast.Call):
        return max(_value(argument, symbols, expr) for argument in node.args)
    if isinstance(node, ast.Name):
        return _lookup(node.id, symbols, expr)
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int)
    return node.value


def _combine(node: ast.BinOp, symbols: Mapping[str, int], expr: str) -> int:
    left, right = (_value(side, symbols, expr) for side in (node.left, node.right))
    try:
        return _OPERATORS[type(node.op)](left, right)
    except ZeroDivisionError:
        raise LengthError(f"{expr!r}: division by zero") from None


def _lookup(name: str, symbols: Mapping[str, int], expr: str) -> int:
    if name in symbols:
        return symbols[name]
    if name in SYMBOLS:
        raise UnknownHere(name)
    raise LengthError(f"{expr!r}: unknown symbol {name!r}; {_legal(symbols)}")


def _shown(value: int | str) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _nonsense(expr: str) -> LengthError:
    return LengthError(f"{expr[:_LONGEST]!r} is no length; a number, or an expression such as 8B+1 or pool/2")


def _legal(more: Collection[str]) -> str:
    return "legal: " + ", ".join(dict.fromkeys((*SYMBOLS, *more)))

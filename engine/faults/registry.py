"""Named mutations of the engine: each the override of one seam, none of them known to the engine itself.

Test material, the proof that the suite catches what it claims (`serve --fault NAME`). Knows the seams of
`build.Parts`. Does not know specs: a fault says which requirements its class breaks, and a run must show
that one of them fails.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

from engine.build import Parts


@dataclass(frozen=True)
class Fault:
    """A mutation: what a user would see (`symptom`), its class, and the requirements that class breaks.

    `needs`: "openblas" when the mutation shows only where a product's rounding depends on its shape.
    """

    name: str
    bug_class: str
    symptom: str
    breaks: tuple[str, ...]
    parts: Parts
    needs: str = ""


FAULTS: dict[str, Fault] = {}


def parts_for(name: str | None) -> Parts:
    """The parts of an engine with this fault, or with several as in `one+other`.

    Raises KeyError with the known names.
    """
    names = name.split("+") if name is not None else []
    if unknown := [repr(one) for one in names if one not in FAULTS]:
        raise KeyError(f"unknown fault {', '.join(unknown)}; known: {', '.join(sorted(FAULTS))}")
    return reduce(_both, (FAULTS[one].parts for one in names), Parts())


def _both(first: Parts, second: Parts) -> Parts:
    """Parts with the changes of two; where both change one seam, the second one's stand in front."""
    seams = [seam.name for seam in fields(Parts)]
    return Parts(**{seam: _joined(*(getattr(p, seam) for p in (Parts(), first, second))) for seam in seams})


def _joined(plain: Any, first: Any, second: Any) -> Any:
    if first is plain:
        return second
    if second is plain or second is first:
        return first
    if not isinstance(plain, type):
        return lambda loaded: second(first(loaded))
    # A fault that refines another is a part of it already.
    ahead = (first, second) if issubclass(first, second) else (second, first)
    return type(f"{first.__name__}And{second.__name__}", ahead, {})


def fault(
    name: str, bug_class: str, breaks: str, *, seam: str, needs: str = ""
) -> Callable[[type[Any]], type[Any]]:
    """Register the decorated class as the replacement of one seam; its docstring is the symptom."""

    def register(kind: type[Any]) -> type[Any]:
        if name in FAULTS:
            raise ValueError(f"two faults are called {name}")
        symptom = " ".join((kind.__doc__ or "").split())
        parts = replace(Parts(), **{seam: _override(seam, kind)})
        FAULTS[name] = Fault(name, bug_class, symptom, tuple(breaks.split()), parts, needs)
        return kind

    return register


def _override(seam: str, kind: type[Any]) -> Any:
    if seam in _LOADED:
        return lambda loaded: _mutated(loaded, kind)
    return (lambda served: _before(kind, served)) if seam in _SERVED else kind


def _before(mixin: type[Any], kind: type[Any]) -> type[Any]:
    """A type with a mixin's methods in front of its own."""
    return type(mixin.__name__, (mixin, kind), {})


_SERVED = ("reply", "exchange")
"""Seams of the server: a type of which it builds one for each request."""

_LOADED = ("model", "tokenizer")
"""Seams of what is loaded: not a type to replace, but an object to change."""


def _mutated(loaded: Any, mixin: type[Any]) -> Any:
    """The loaded model or tokenizer with a mixin's methods in front of its own; a twin, since another engine
    of this process may use the same."""
    twin = copy(loaded)
    twin.__class__ = _before(mixin, type(loaded))
    return twin


def known() -> list[Fault]:
    """Every fault by name."""
    return [FAULTS[name] for name in sorted(FAULTS)]

"""Which cases an endpoint gets: what their steps do to others, and what it was said to bear."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from conformance.permission import needed, refusal
from conformance.spec import Spec


def spec(*steps: dict[str, Any]) -> Spec:
    return cast(Spec, SimpleNamespace(steps=[made(step) for step in steps]))


def made(step: dict[str, Any]) -> SimpleNamespace:
    inner = {
        key: [made(one) if isinstance(one, dict) else one for one in value]
        for key, value in step.items()
        if isinstance(value, list)
    }
    return SimpleNamespace(**step | inner)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"send": "a"}, set()),
        ({"send": "a", "leave": None}, set()),
        ({"send": "a", "leave": {"how": "rst"}}, {"disconnect"}),
        ({"churn": "full"}, {"churn"}),
        ({"reset": True}, {"reset"}),
        ({"loop": 3, "steps": [{"churn": "full"}, {"reset": "r"}]}, {"churn", "reset"}),
        ({"burst": "b", "each": [{"name": "x"}, {"name": "y", "leave": {"how": "fin"}}]}, {"disconnect"}),
        ({"turns": "t", "each": ["system", {"unique": 3}]}, set()),
    ],
)
def test_what_a_step_needs(step: dict[str, Any], words: set[str]) -> None:
    assert needed(spec({"wait": "idle"}, step)) == words


def test_a_refusal_names_every_word_that_is_missing() -> None:
    case = spec({"churn": "full"}, {"reset": True}, {"send": "a", "leave": {}}, {"loop": 1, "leave": 1})
    said = refusal(case, ["reset"])
    assert "--allow churn" in said
    assert "--allow disconnect" in said
    assert "--allow reset" not in said
    assert refusal(case, ["churn", "disconnect", "reset"]) == ""

"""The shipped specs are for every server: no block, granule or chunk makes one of them impossible."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from conformance.collect import SPECS
from conformance.load import Loaded, load, spec_files
from conformance.plan import PlanError, Scale, Unobservable, make_plan
from conformance.rungs import rungs
from conformance.spec import Spec
from tests.conformance.builders import facts
from tests.conformance.test_plan import Ids, case

NUMBERS = [(1, 1, 2048), (16, 16, 2048), (128, 128, 512)]
"""Block, granule and chunk as llama-server, vLLM on a GPU and vLLM on a CPU have them."""


@cache
def shipped() -> list[Loaded]:
    return [load(path) for path in spec_files(SPECS)]


def impossible(spec: Spec, block: int, granule: int, chunk: int, scale: Scale) -> Iterator[str]:
    """Why rungs of the spec cannot be on a server of these numbers; what it does not show is no reason."""
    there = facts(block=block, granule=granule, chunk=chunk)
    for rung in rungs(spec):
        try:
            make_plan(spec, rung, there, scale, "run", Ids())
        except PlanError as error:
            yield f"{spec.id} {rung}: {error}"
        except Unobservable:
            continue


@pytest.mark.parametrize("scale", ["ci", "full"])
@pytest.mark.parametrize("numbers", NUMBERS)
def test_every_shipped_spec_can_be_on_a_server_of_any_size(
    numbers: tuple[int, int, int], scale: Scale
) -> None:
    assert [reason for one in shipped() for reason in impossible(one.spec, *numbers, scale)] == []


def test_a_spec_that_fits_a_large_granule_alone_is_noticed() -> None:
    spec = case([{"send": "short", "prompt": [{"unique": "G-1"}]}])
    assert list(impossible(spec, 16, 16, 512, "ci")) == []
    assert "'G-1' is 0 tokens on this target" in next(impossible(spec, 1, 1, 512, "ci"))

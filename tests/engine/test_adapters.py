"""Adapters: another identity, other rows, reloadable under one name (key/1, key/7, reset/3)."""

from __future__ import annotations

from typing import Any

import pytest

from engine.adapters import NAMES
from engine.build import Parts
from engine.faults import parts_for
from engine.faults.numbers import ShapeDependentRows
from engine.index import PrefixIndex
from engine.messages import Adapter, RequestError
from engine.sequence import Sequence
from engine.storage import PagedStorage
from tests.engine.rig import Client, Rig

MODELS = pytest.mark.parametrize("model", ["digest", "tiny"])


def ask(rig: Rig, name: str | None = None, salt: str = "", **params: Any) -> Client:
    adapter = None if name is None else rig.engine.adapters.served[name]
    (client,) = rig.run(rig.prompt(18), adapter=adapter, salt=salt, **{"max_tokens": 8, **params})
    return client


@MODELS
def test_an_adapter_has_its_own_output_and_its_own_cache(model: str) -> None:
    rig = Rig(model=model)
    base, a, b = (ask(rig, name) for name in (None, "a", "b"))
    assert (base.cached, a.cached, b.cached) == (0, 0, 0)
    assert len({tuple(client.ids()) for client in (base, a, b)}) == 3
    again = [ask(rig, name) for name in (None, "a", "b")]
    assert [client.cached for client in again] == [16, 16, 16]
    assert [client.ids() for client in again] == [client.ids() for client in (base, a, b)]


@MODELS
@pytest.mark.parametrize("storage", ["paged", "dense"])
def test_a_salt_that_is_an_adapters_name_is_another_identity(model: str, storage: str) -> None:
    rig = Rig(model=model, storage=storage)
    a = ask(rig, "a")
    salted = [ask(rig, salt=salt) for salt in ("a", "adapter", "salt", "adapter1:a;")]
    assert [client.cached for client in salted] == [0, 0, 0, 0]
    assert all(client.ids() != a.ids() for client in salted)
    assert (ask(rig, "a").cached, ask(rig, salt="a").cached) == (16, 16)


@MODELS
def test_reloaded_weights_are_cold_and_others(model: str) -> None:
    rig = Rig(model=model)
    old = ask(rig, "a")
    assert rig.engine.adapters.reload("a", 7) == Adapter("a", 7, 1)
    new = ask(rig, "a")
    assert (new.cached, new.ids() == old.ids()) == (0, False)
    assert ask(rig, "a").cached == 16


def test_the_same_weights_loaded_again_are_cold_all_the_same() -> None:
    rig = Rig()
    old = ask(rig, "a")
    rig.engine.adapters.reload("a", 0)
    new = ask(rig, "a")
    assert (new.cached, new.ids()) == (0, old.ids())


@MODELS
def test_a_request_ends_with_the_weights_it_began_with(model: str) -> None:
    solo = ask(Rig(model=model), "a").ids()
    rig = Rig(model=model)
    client = rig.add(rig.prompt(18), 8, adapter=rig.engine.adapters.served["a"])
    rig.steps(3)
    rig.engine.adapters.reload("a", 7)
    other = rig.add(rig.prompt(18), 8, adapter=rig.engine.adapters.served["a"])
    rig.drain()
    assert (client.ids(), other.cached) == (solo, 0)


@MODELS
def test_company_of_other_adapters_changes_nothing(model: str) -> None:
    rig = Rig(model=model)
    solo = [ask(rig, name, logprobs=2).said() for name in (None, "a", "b")]
    adapters = (None, *(rig.engine.adapters.served[name] for name in NAMES))
    together = [rig.add(rig.prompt(18), 8, salt="x", adapter=adapter, logprobs=2) for adapter in adapters]
    rig.drain()
    assert [client.said() for client in together] == solo


def test_an_identity_without_the_adapter_would_be_seen() -> None:
    class Blind(PagedStorage):
        def prepare(self, seq: Sequence) -> None:
            seq.keys = self.index.chain(self.index.root(("salt", seq.request.salt)), seq.tokens)

    rig = Rig(Parts(paged=Blind))
    right = ask(Rig(), "a").ids()
    ask(rig)
    wrong = ask(rig, "a")
    assert (wrong.cached, wrong.ids() == right) == (16, False)


def test_roots_of_identities_do_not_blend() -> None:
    index = PrefixIndex(4)
    parts = [("salt", "a"), ("salt", "", "adapter", "a"), ("salt", "adapter", "a"), ("salt", "adaptera")]
    assert len({index.root(identity) for identity in parts}) == len(parts)


def test_an_adapter_that_is_not_there_is_named() -> None:
    with pytest.raises(RequestError, match="no adapter 'z'; there are a, b") as caught:
        Rig().engine.adapters.reload("z", 1)
    assert caught.value.param == "name"


def test_a_fault_of_the_model_is_in_its_adapters_too() -> None:
    rig = Rig(parts_for("shape_dependent_rows"), model="tiny")
    assert isinstance(rig.engine.adapters.runner(Adapter("a")), ShapeDependentRows)

"""A live server with a scripted worker, shared by the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.fakes import Address, Client, FakeWorker, Switch, live


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Switch, Address]]:
    switch = Switch()
    with live(switch) as address:
        yield switch, address


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def client(served: tuple[Switch, Address], worker: FakeWorker) -> Client:
    switch, address = served
    switch.worker = worker
    return Client(address)


@pytest.fixture
def tester(worker: FakeWorker) -> Iterator[Client]:
    """A client of a server in test mode."""
    with live(worker, test_mode=True) as address:
        yield Client(address)

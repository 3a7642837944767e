"""What is asked of other plugins: one workload ahead of a worker, and no Hypothesis for a run without it."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from conformance.neighbours import spare_hypothesis
from conformance.plugin import Reporter, pytest_xdist_make_scheduler


class Node:
    """A worker as xdist sees it: it runs an item once it knows the next one, or that none follows."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.queue: list[int] = []
        self.shutting_down = False

    @property
    def can_run(self) -> bool:
        return len(self.queue) > self.shutting_down ^ 1

    def send_runtest_some(self, places: list[int]) -> None:
        self.queue += places

    def shutdown(self) -> None:
        self.shutting_down = True


def settled(**options: Any) -> Any:
    """A config with these options of the suite, spread over workers."""
    said = {"dist": "load", "tx": [], "loadscopereorder": True} | options
    option = SimpleNamespace(**said)
    return Mock(option=option, getoption=lambda name, default=None: said.get(name, default), args=["specs"])


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> Any:
    """xdist's scheduler as a run of specs on two workers has it."""
    monkeypatch.setattr("conformance.plugin.is_spread", lambda config: True)
    monkeypatch.setattr("conformance.neighbours.how_of", lambda config: "engine")
    monkeypatch.setattr("conformance.neighbours.by_fault", lambda config: False)
    monkeypatch.setattr("xdist.scheduler.loadscope.parse_tx_spec_config", lambda config: [1, 1])
    return lambda: pytest_xdist_make_scheduler(settled(), Mock())


def started(scheduler: Any, units: dict[str, int]) -> tuple[list[str], list[Node]]:
    """All items of workloads with so many each, and two workers to which some were handed out."""
    ids = [f"specs/{name}.yaml::item{place}" for name, count in units.items() for place in range(count)]
    nodes = [joined(scheduler, ids, name) for name in ("gw0", "gw1")]
    scheduler.schedule()
    return ids, nodes


def joined(scheduler: Any, ids: list[str], name: str) -> Node:
    node = Node(name)
    scheduler.add_node(node)
    scheduler.add_node_collection(node, ids)
    return node


def handed_out(scheduler: Any, units: dict[str, int]) -> list[list[str]]:
    """The workloads of each worker at the start."""
    _, nodes = started(scheduler, units)
    return [
        [scope.rpartition("/")[2].partition(".")[0] for scope in scheduler.assigned_work[node]]
        for node in nodes
    ]


def test_a_worker_has_one_workload_ahead_and_no_more(spread: Any) -> None:
    scheduler = spread()
    assert handed_out(scheduler, dict.fromkeys("abcdefgh", 1)) == [["a", "c"], ["b", "d"]]
    assert len(scheduler.workqueue) == 4


def test_a_workload_of_several_items_needs_none_ahead(spread: Any) -> None:
    assert handed_out(spread(), {"a": 5, "b": 1, "c": 1, "d": 1}) == [["a"], ["b", "c"]]


def left_undone(scheduler: Any, seed: int, crash: int | None) -> int:
    """Items that nobody ran, of workloads of a few items each, where a worker may crash and be replaced."""
    chance, done = random.Random(seed), set[int]()
    ids, nodes = started(scheduler, {f"u{i}": chance.choice((1, 1, 1, 2, 3, 5)) for i in range(20)})
    for step in range(1000):
        ready = [node for node in nodes if node.can_run]
        if not ready:
            return len(ids) - len(done)
        node = chance.choice(ready)
        place = node.queue.pop(0)
        done.add(place)
        if step == crash:
            nodes.remove(node)
            scheduler.remove_node(node)
            nodes.append(joined(scheduler, ids, "gw2"))
            scheduler.schedule()
        else:
            scheduler.mark_test_complete(node, place)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("crash", [None, 10, 25])
def test_every_item_is_run_also_where_a_worker_crashes(spread: Any, crash: int | None) -> None:
    """What a crash brings back may hold workloads of which nothing is left to do."""
    assert [left_undone(spread(), seed, crash) for seed in range(50)] == [0] * 50


# ---- Hypothesis


def unregistered(monkeypatch: pytest.MonkeyPatch, *, is_used: bool, is_there: bool = True) -> Any:
    """The plugins that were sent away at the end of a run."""
    loaded = {name: module for name, module in sys.modules.items() if name != "hypothesis"}
    monkeypatch.setattr(sys, "modules", loaded | ({"hypothesis": Mock()} if is_used else {}))
    manager = Mock(get_plugin={"hypothesispytest": "its plugin"}.get if is_there else {}.get)
    spare_hypothesis(Mock(pluginmanager=manager))
    return [call.args[0] for call in manager.unregister.call_args_list]


def test_a_run_without_hypothesis_does_not_load_it_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unregistered(monkeypatch, is_used=False) == ["its plugin"]


def test_a_run_with_it_keeps_what_it_has_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unregistered(monkeypatch, is_used=True) == []


def test_where_it_has_no_plugin_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unregistered(monkeypatch, is_used=False, is_there=False) == []


@pytest.mark.parametrize(("when", "spared"), [("call", 0), ("setup", 1)])
def test_tests_beside_specs_keep_its_plugin(monkeypatch: pytest.MonkeyPatch, when: str, spared: int) -> None:
    """On a controller it is never loaded, whatever the workers' tests were made with."""
    asked: list[Any] = []
    monkeypatch.setattr("conformance.plugin.spare_hypothesis", asked.append)
    monkeypatch.setattr("conformance.plugin.runs_no_items", lambda config: True)
    reporter = Reporter(settled(), Mock())
    other: Any = SimpleNamespace(user_properties=[], when=when)
    reporter.pytest_runtest_logreport(other)
    reporter.pytest_sessionfinish(Mock())
    assert len(asked) == spared

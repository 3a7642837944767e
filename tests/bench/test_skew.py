"""The measurements of the client measure something, and say by their status whether it was enough."""

from __future__ import annotations

import pytest

from bench import skew
from bench.streams import server


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skew, "CLIENTS", 3)
    monkeypatch.setattr(skew, "MOST_SKEW", 10.0)
    monkeypatch.setattr(skew, "MOST_CPU", 10.0)


PACES = ([1.0, 1.02, 1.04], [1.0, 1.02, 1.0201])
ARGS = ("--bursts=2", "--seconds=0.2", "--runs=1")


def test_both_figures_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert skew.main(ARGS) == 0
    told = capsys.readouterr().out
    assert "3 requests of a burst arrive within, ms, median" in told
    assert "3 streams of 50 tokens/s, in one step: of a core, %" in told
    assert "3 streams of 50 tokens/s, one after the other: of a core, %" in told


@pytest.mark.parametrize("limit", ["MOST_SKEW", "MOST_CPU"])
def test_a_figure_that_is_not_reached_is_a_status(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skew, limit, 0.0)
    assert skew.main(ARGS) == 1


def test_a_burst_that_fails_measures_nothing() -> None:
    with server() as url, skew._target(url) as target:
        seen = skew._drive(target, 2, 0).workload.outcomes
    apart, together = ([outcome.model_copy(update={"tokens_at": at}) for outcome in seen] for at in PACES)
    assert (skew._singly(apart), skew._singly(together)) == (1.0, 0.5)
    with pytest.raises(RuntimeError, match=r"the burst failed: .'cannot connect to http"):
        skew._drive(target, 1, 1)

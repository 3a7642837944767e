"""Where a hunt takes place: what workloads are made for, who judges them, and the bundled engine as such.

Knows targets and what they bear. Does not know rounds, helpers or the command line. The bundled engine lives
in this process, on one core: never use it in one that collects tests.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.explore.hunt import Chase, Judge
from conformance.explore.strategies import workloads
from conformance.history import Facts
from conformance.permission import PERMISSIONS
from conformance.workers import one_core

if TYPE_CHECKING:
    from engine.config import EngineConfig

INSIDE = ("default", "tight", "collide", "overcommit", "dense")
"""Launch profiles of the bundled engine that workloads are made for; a server of yours keeps its own."""


@dataclass(frozen=True)
class Ground:
    """Where workloads are performed. With `healthy`, a failure counts where that passes."""

    facts: Facts
    judge: Judge
    profiles: Sequence[str]
    allow: Sequence[str]
    healthy: Judge | None = None
    spare: Sequence[int] = ()
    """Cores on which helpers may take rounds of a hunt here."""

    def chase(self, seconds: float | None, start: float | None = None) -> Chase:
        """See `Chase`."""
        made = workloads(self.facts, self.profiles, self.allow)
        return Chase(made, self.judge, self.healthy, seconds, start=start)


@contextmanager
def inside(engine_args: str, fault: str | None) -> Iterator[Ground]:
    """The bundled engine, with these flags of `serve` and this fault. SystemExit 2 for a flag that is none,
    ValueError or KeyError for a value or a fault that cannot be."""
    flags = shlex.split(engine_args)
    _choose_blas(flags)
    from conformance.explore.inprocess import configured  # brings in MLX, so only now
    from conformance.explore.judging import Inside
    from engine.faults import parts_for

    with one_core() as spare:
        configs: dict[str, EngineConfig] = configured(flags)
        judge, sound = Inside(configs, parts_for(fault)), Inside(configs, parts_for(None))
        yield Ground(judge.facts, judge, INSIDE, tuple(PERMISSIONS), sound if fault else None, spare)


def _choose_blas(flags: Sequence[str]) -> None:
    """The built-in BLAS unless the flags say otherwise; before MLX is there."""
    from engine import blas
    from engine.cli import build_parser, config_of

    blas.apply(config_of(build_parser().parse_args(["serve", "--blas", "builtin", *flags])).blas)

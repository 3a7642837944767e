"""What makes no sense on the command line, said before anything runs.

Knows which options exclude each other or mean nothing alone. Does not know what they do (`options.py`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conformance.options import (
    EXPECTED,
    MANY,
    VALUES,
    dest,
    hunting_of,
    is_spread,
    is_updating,
    option,
    paths_of,
    read_all,
    targets_of,
    variable,
)
from conformance.values import CHECKS

_FOREIGN = ("margin", "chunk", "model", "header", "cacert", "insecure")
"""What means nothing for the bundled engine."""

_EXPLORE = ("explore", "explore-seed", "explore-seconds", "explore-fault")

_MAY_BE_EMPTY = ("engine-args", "allow")
"""No flags and no permissions are what an empty value says; elsewhere it is a variable that nobody set."""


def refuse_nonsense(config: pytest.Config) -> None:
    """Raise UsageError for options that exclude each other or mean nothing."""
    _refuse_empty(config)
    targets = targets_of(config)
    if len(targets) > 1:
        raise pytest.UsageError(f"{' and '.join(targets)}: one run has one target")
    if not targets and (name := next((n for n in _FOREIGN if option(config, n)), None)):
        raise pytest.UsageError(f"--{name} is for a server of yours: say --endpoint URL or --serve CMD too")
    if targets and (extra := [name for name in ("fault", "engine-args") if option(config, name)]):
        raise pytest.UsageError(f"--{extra[0]} is for the bundled engine, not for {targets[0]}")
    if targets and is_updating(config) and not option(config, "golden"):
        raise pytest.UsageError(
            f"--snapshot-update with {targets[0]} needs --golden NAME: whose outputs are they?"
        )
    if option(config, "faults"):
        _refuse_beside_faults(config, targets)
    elif alone := next((name for name in _of_faults(config) if option(config, name)), None):
        raise pytest.UsageError(f"--{alone} is for a run with faults: say --faults all, or one by name, too")
    _refuse_beside_explore(config, targets)
    if is_spread(config) and (dist := config.getoption("dist")) not in ("load", "loadgroup"):
        raise pytest.UsageError(
            f"--dist {dist}: a workload stays on one worker, as with plain -n; leave it out"
        )
    if option(config, "dry-run"):
        _refuse_beside_dry_run(config)
    if option(config, "insecure") and option(config, "cacert"):
        raise pytest.UsageError("--insecure and --cacert: either nothing is checked or that file is trusted")
    _refuse_memory(config, targets)
    read_all(config)
    for name, check in CHECKS.items():
        for value in map(str, paths_of(config, name)) if name in MANY else [option(config, name)]:
            if value:
                check(value)
    _refuse_expectations(config)


def _refuse_expectations(config: pytest.Config) -> None:
    """Known deviations must be about specs that are shipped, or that this run is pointed at."""
    if not (given := option(config, "expectations")):
        return
    from conformance.collect import SPECS
    from conformance.load import spec_files
    from conformance.marks import SpecError
    from conformance.named import load

    asked = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    roots = [SPECS, *paths_of(config, "specs"), *asked]
    specs = [path for root in roots for path in (spec_files(root) if root.is_dir() else [root])]
    try:
        load(Path(given), [path for path in specs if path.is_file()])
    except SpecError as error:
        raise pytest.UsageError(f"--expectations: {error}") from None


def _of_faults(config: pytest.Config) -> tuple[str, ...]:
    """Options that mean nothing without faults; those that are explored have a report too."""
    return ("cross",) if option(config, "explore-fault") else ("cross", "report-kills")


def _refuse_memory(config: pytest.Config, targets: list[str]) -> None:
    """Raise UsageError for options about footprints where none can be read, or none is compared."""
    if option(config, "pid") and targets != ["--endpoint"]:
        raise pytest.UsageError("--pid is for --endpoint URL: what is started here is known")
    if option(config, "baseline-any-machine") and not option(config, "baseline"):
        raise pytest.UsageError("--baseline-any-machine: with which baseline? Say --baseline NAME too")
    if option(config, "record-baseline"):
        others = [
            name for name in ("endpoint", "replay", "faults", "baseline", "dry-run") if option(config, name)
        ]
        if others or is_spread(config):
            raise pytest.UsageError(
                "--record-baseline starts a process for each scenario and does nothing else: drop "
                + (f"--{others[0]}" if others else "-n")
            )


def _refuse_empty(config: pytest.Config) -> None:
    """An empty value is a variable that nobody set; to go on without would test the wrong thing."""
    wanted = {name: EXPECTED.get(metavar, "") for name, (metavar, _) in VALUES.items()}
    for name, expected in {**wanted, "scale": "full or ci"}.items():
        given = config.getoption(dest(name))
        said = [(f"--{name}", value) for value in (given if isinstance(given, list) else [given])]
        for where, value in [*said, (variable(name), os.environ.get(variable(name)))]:
            if name not in _MAY_BE_EMPTY and value is not None and not value.strip():
                raise pytest.UsageError(f"{where}: empty; expected {expected}")


def _refuse_beside_dry_run(config: pytest.Config) -> None:
    others = [name for name in ("replay", "faults", "fault") if option(config, name)]
    if others or is_spread(config):
        raise pytest.UsageError(f"--dry-run runs nothing: drop {f'--{others[0]}' if others else '-n'}")


def _refuse_beside_faults(config: pytest.Config, targets: list[str]) -> None:
    from conformance.faults import choose

    if targets or option(config, "fault"):
        other = targets[0] if targets else "--fault"
        raise pytest.UsageError(f"--faults runs on the bundled engine, with and without each: drop {other}")
    choose(option(config, "faults"))


def _refuse_beside_explore(config: pytest.Config, targets: list[str]) -> None:
    parts = [name for name in _EXPLORE[1:] if option(config, name)]
    if not option(config, "explore"):
        if parts:
            raise pytest.UsageError(f"--{parts[0]} says how to explore: say --explore N too")
        return
    others = [name for name in ("replay", "faults", "fault", "dry-run") if option(config, name)]
    if others:
        raise pytest.UsageError(f"--explore makes up workloads of its own: drop --{others[0]}")
    if targets and option(config, "explore-fault"):
        raise pytest.UsageError(f"--explore-fault is for the bundled engine, not for {targets[0]}")
    hunting_of(config)

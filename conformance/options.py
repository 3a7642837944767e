"""The options of a run: their names, where their values come from, and what makes no sense.

Knows option names, environment variables, and what a user may say together. Does not know items, sessions or
reports (`plugin.py`). Whatever is wrong with an option is a UsageError before anything runs.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

from conformance.values import CHECKS, words_of

if TYPE_CHECKING:
    from conformance.baseline import Comparison
    from conformance.exploring import Hunting
    from conformance.plan import Scale
    from conformance.session import Options
    from conformance.target import TargetOptions

_HERE = Path(__file__).parent
_OPTIONS: pytest.StashKey[Options] = pytest.StashKey()

_VALUES = {
    "endpoint": ("URL", "test the OpenAI-compatible server at URL"),
    "serve": ("CMD", 'start a server with CMD, which holds {port}: --serve "mlx_lm.server --port {port}"'),
    "replay": (
        "FILE",
        "judge a history again, without a server; given several times: a target each, one matrix",
    ),
    "engine-args": ("STR", "more flags for the bundled engine"),
    "fault": ("NAME", "start the bundled engine with this fault"),
    "faults": ("NAME", "run faults, `all` or one by name, against the specs that must catch them"),
    "explore": (
        "N",
        "instead of the specs: make up N workloads at random, and write one that fails as a spec",
    ),
    "explore-seed": ("N", "seed of what is made up (default 0)"),
    "explore-seconds": ("S", "stop making up after so many seconds (default 600; 60 for a numeric fault)"),
    "explore-fault": ("NAME", "faults that must be found by that, `all` or by name, on the bundled engine"),
    "history": ("FILE", "write the history there (default: .conformance/history-<UTC time>.jsonl)"),
    "specs": ("DIR", "run the specs of this folder of yours as well, with `pytest conformance/`"),
    "report-json": ("FILE", "write the verdicts with their evidence there, as one JSON document"),
    "report-kills": ("FILE", "write there what each spec made of each fault (`python -m conformance kills`)"),
    "report-html": ("FILE", "write them there as one page, with timelines of the bursts"),
    "expectations": ("FILE", "known deviations of the server (default: those in expectations/)"),
    "pid": ("PID", "the process behind --endpoint on this machine, so that its memory can be read"),
    "record-baseline": (
        "NAME",
        "measure the six scenarios' memory and keep it as golden/baselines/NAME.json",
    ),
    "baseline": ("NAME", "compare memory with the baseline NAME"),
    "golden": ("NAME", "compare with, or update, the golden outputs golden/NAME of a target of yours"),
    "request-timeout": ("S", "seconds that one request may take (default 300)"),
    "margin": (
        "GAP",
        "logprob gap of a token's two best above which it counts as decided (default: what the dialect says;"
        " a server that computes in fp32 bears 0.001)",
    ),
    "allow": ("LIST", "what an endpoint, which others may use, must bear: churn, disconnect, reset"),
    "model": (
        "NAME",
        "ask an endpoint, or what --serve starts, for this model (default: the first it lists)",
    ),
    "header": ("LIST", "send HEADER=VARIABLE,...: each header with what the environment variable holds"),
    "cacert": ("FILE", "trust the certificates in FILE when the endpoint is https"),
    "min-judged": ("LIST", "requirements that must have been judged (default adopt/1,out/1,count/1)"),
}

_EXPECTED = {
    "URL": "a URL",
    "CMD": "a command that holds {port}",
    "FILE": "a file",
    "DIR": "a folder",
    "NAME": "a name",
    "PID": "a process id",
    "S": "a number of seconds",
    "GAP": "a number",
    "N": "a number",
    "LIST": "words with a comma between",
}

_FOREIGN = ("margin", "model", "header", "cacert", "insecure")
"""What means nothing for the bundled engine."""

_EXPLORE = ("explore", "explore-seed", "explore-seconds", "explore-fault")

_MAY_BE_EMPTY = ("engine-args", "allow")
"""No flags and no permissions are what an empty value says; elsewhere it is a variable that nobody set."""

_MANY = ("replay", "specs")
"""May be given several times; their variables hold paths as PATH does, with `:` between."""

_FLAGS = {
    "should": "a failed SHOULD fails the item on any target, not only on the bundled engine",
    "allow-inconclusive": "skip what is inconclusive instead of failing it",
    "cross": "with --faults: every quick spec against every fault, not only those that claim it; takes long",
    "dry-run": "send nothing but GETs: say what each case would send, and what could not be judged",
    "baseline-any-machine": "compare with --baseline also on another machine, model or scale",
    "insecure": "do not check the certificate of an https endpoint",
}


def add_options(parser: pytest.Parser) -> None:
    """The titled group in `--help`; every option is also an environment variable."""
    group = parser.getgroup("conformance", "prefix-cache conformance (each also as CONFORMANCE_<NAME>)")
    for name, (metavar, text) in _VALUES.items():
        action = "append" if name in _MANY else "store"
        group.addoption(
            f"--{name}", dest=_dest(name), metavar=metavar, default=None, help=text, action=action
        )
    for name, text in _FLAGS.items():
        group.addoption(f"--{name}", dest=_dest(name), action="store_true", default=None, help=text)
    group.addoption(
        "--scale",
        dest=_dest("scale"),
        choices=("full", "ci"),
        default=None,
        help="shared prefix of about 3,700 tokens, or 570 and short waits (default full; ci with -m quick)",
    )


def is_spread(config: pytest.Config) -> bool:
    """Whether specs are run on several xdist workers."""
    return config.getoption("dist", "no") != "no" and is_asked_for(config)


def refuse_nonsense(config: pytest.Config) -> None:
    """Raise UsageError for options that exclude each other or mean nothing."""
    _refuse_empty(config)
    targets = _targets(config)
    if len(targets) > 1:
        raise pytest.UsageError(f"{' and '.join(targets)}: one run has one target")
    if not targets and (name := next((n for n in _FOREIGN if option(config, n)), None)):
        raise pytest.UsageError(f"--{name} is for a server of yours: say --endpoint URL or --serve CMD too")
    if targets and (extra := [name for name in ("fault", "engine-args") if option(config, name)]):
        raise pytest.UsageError(f"--{extra[0]} is for the bundled engine, not for {targets[0]}")
    if targets and _is_updating(config) and not option(config, "golden"):
        raise pytest.UsageError(
            f"--snapshot-update with {targets[0]} needs --golden NAME: whose outputs are they?"
        )
    if option(config, "faults"):
        _refuse_beside_faults(config, targets)
    elif alone := next((name for name in ("cross", "report-kills") if option(config, name)), None):
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
    for read in (_baseline, _scale, _seconds, _margin, _engine_args, _allowed, _headers):
        read(config)
    for name, check in CHECKS.items():
        for value in map(str, paths_of(config, name)) if name in _MANY else [option(config, name)]:
            if value:
                check(value)


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


def runs_no_items(config: pytest.Config) -> bool:
    """Whether something else is done with what was collected than to judge it."""
    others = option(config, "dry-run") or option(config, "record-baseline")
    return bool(config.option.collectonly or others)


def _refuse_empty(config: pytest.Config) -> None:
    """An empty value is a variable that nobody set; to go on without would test the wrong thing."""
    wanted = {name: _EXPECTED.get(metavar, "") for name, (metavar, _) in _VALUES.items()}
    for name, expected in {**wanted, "scale": "full or ci"}.items():
        given = config.getoption(_dest(name))
        said = [(f"--{name}", value) for value in (given if isinstance(given, list) else [given])]
        for where, value in [*said, (_variable(name), os.environ.get(_variable(name)))]:
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


def hunting_of(config: pytest.Config) -> Hunting:
    """What `--explore` asks for."""
    from conformance.exploring import Hunting
    from conformance.faults import choose

    faults = option(config, "explore-fault")
    passed = ("endpoint", "serve", "model", "allow", "header", "cacert", "request-timeout")
    target = [word for name in passed if (said := option(config, name)) for word in (f"--{name}", str(said))]
    return Hunting(
        examples=_whole(config, "explore", least=1),
        seed=_whole(config, "explore-seed", least=0) if option(config, "explore-seed") else 0,
        seconds=_positive(config, "explore-seconds", "a number of seconds"),
        faults=tuple(choose(faults)) if faults else (),
        target=(*target, *(("--insecure",) if option(config, "insecure") else ())),
        engine_args=_engine_args(config),
    )


def _whole(config: pytest.Config, name: str, least: int) -> int:
    given = option(config, name)
    if not given.isdecimal() or int(given) < least:
        raise pytest.UsageError(f"--{name} {given}: a whole number from {least} on")
    return int(given)


def _is_updating(config: pytest.Config) -> bool:
    updating = ("update_snapshots", "update_new_snapshots_only")
    return any(config.getoption(name, False) for name in updating)


def stranger_lines() -> list[str]:
    """A line for each CONFORMANCE_* variable that no option reads: probably a typing error."""
    return [_stranger(name) for name in strangers(os.environ)]


def strangers(names: Iterable[str]) -> list[str]:
    """Environment variables that look like an option and are none."""
    return sorted(name for name in names if name.startswith("CONFORMANCE_") and name not in variables())


def _stranger(name: str) -> str:
    near = get_close_matches(name, variables(), n=1)
    return f"{name} is no option and is ignored" + (f"; did you mean {near[0]}?" if near else "")


def variables() -> list[str]:
    return [*map(_variable, (*_VALUES, *_FLAGS, "scale")), "CONFORMANCE_API_KEY"]


def options_of(config: pytest.Config) -> Options:
    """What the run was asked for; made once, since it names the history by the time."""
    if config.stash.get(_OPTIONS, None) is None:
        config.stash[_OPTIONS] = _read_options(config)
    return config.stash[_OPTIONS]


def _read_options(config: pytest.Config) -> Options:
    from conformance.baseline import SCENARIOS
    from conformance.record import default_path
    from conformance.session import Options

    worker = getattr(config, "workerinput", {}).get("workerid")
    history, baseline = option(config, "history"), _baseline(config)
    alone = baseline is not None or option(config, "record-baseline")
    path = Path(history) if history else default_path(Path(), worker)
    return Options(
        how=how_of(config),
        scale=_scale(config),
        history=path.with_stem(f"{path.stem}-{worker}") if history and worker else path,
        replay=paths_of(config, "replay"),
        golden=option(config, "golden"),
        baseline=baseline,
        fresh=frozenset(SCENARIOS if alone and how_of(config) != "endpoint" else ()),
        allow=_allowed(config),
        should=bool(option(config, "should")),
        allow_inconclusive=bool(option(config, "allow-inconclusive")),
        **({"url": option(config, "endpoint")} if how_of(config) == "endpoint" else {}),
    )


def _baseline(config: pytest.Config) -> Comparison | None:
    from conformance.baseline import FOLDER, BaselineError, Comparison, read

    if not (name := option(config, "baseline")):
        return None
    try:
        recorded = read(FOLDER, name)
    except BaselineError as error:
        raise pytest.UsageError(f"--baseline: {error}") from None
    any_machine = bool(option(config, "baseline-any-machine"))
    return Comparison(name=name, recorded=recorded, scale=_scale(config), any_machine=any_machine)


def target_of(config: pytest.Config, progress: Callable[[str], None]) -> TargetOptions:
    from conformance.target import TargetOptions

    how = how_of(config)
    return TargetOptions(
        how="engine" if how == "replay" else how,
        url=option(config, "endpoint") or "",
        command=option(config, "serve") or "",
        engine_args=_engine_args(config),
        fault=option(config, "fault"),
        allow=_allowed(config),
        timeout=_seconds(config) or 300.0,
        margin=_margin(config),
        progress=progress,
        model=option(config, "model"),
        extra=_headers(config),
        pid=int(option(config, "pid") or 0) or None,
        dry=bool(option(config, "dry-run")),
        verify=False if option(config, "insecure") else option(config, "cacert") or True,
    )


def how_of(config: pytest.Config) -> Literal["engine", "serve", "endpoint", "replay"]:
    targets = _targets(config)
    return cast(Any, targets[0].removeprefix("--")) if targets else "engine"


def _targets(config: pytest.Config) -> list[str]:
    """Options that name a target; those of the command line before those of the environment."""
    names = ("endpoint", "serve", "replay")
    given = [f"--{name}" for name in names if config.getoption(_dest(name))]
    return given or [f"--{name}" for name in names if option(config, name)]


def _scale(config: pytest.Config) -> Scale:
    chosen = option(config, "scale") or ("ci" if config.option.markexpr == "quick" else "full")
    if chosen not in ("full", "ci"):
        raise pytest.UsageError(f"CONFORMANCE_SCALE={chosen}: full or ci")
    return cast("Scale", chosen)


def _allowed(config: pytest.Config) -> frozenset[str]:
    from conformance.permission import PERMISSIONS

    words = frozenset(words_of(option(config, "allow") or ""))
    unknown = sorted(words - set(PERMISSIONS))
    if unknown:
        legal = ", ".join(PERMISSIONS)
        raise pytest.UsageError(f"--allow {unknown[0]}: expected some of {legal}, with a comma between")
    return words


def _headers(config: pytest.Config) -> dict[str, str]:
    from conformance.access import headers_of

    try:
        return headers_of(words_of(option(config, "header") or ""), os.environ)
    except ValueError as error:
        raise pytest.UsageError(f"--header {error}") from None


def _seconds(config: pytest.Config) -> float | None:
    return _positive(config, "request-timeout", "a number of seconds")


def _margin(config: pytest.Config) -> float | None:
    return _positive(config, "margin", "a number")


def _positive(config: pytest.Config, name: str, what: str) -> float | None:
    given = option(config, name)
    if given is None:
        return None
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise pytest.UsageError(f"--{name} {given}: {what} above 0")
    return number


def _engine_args(config: pytest.Config) -> tuple[str, ...]:
    given = option(config, "engine-args") or ""
    try:
        return tuple(shlex.split(given))
    except ValueError as error:
        raise pytest.UsageError(f"--engine-args {given!r}: {error}") from None


def option(config: pytest.Config, name: str) -> Any:
    """The option's value, or that of its environment variable."""
    return config.getoption(_dest(name)) or os.environ.get(_variable(name)) or None


def paths_of(config: pytest.Config, name: str) -> tuple[Path, ...]:
    """The files or folders of an option that may be given several times; each once."""
    given = option(config, name) or []
    words = given if isinstance(given, list) else given.split(os.pathsep)
    return tuple(dict.fromkeys(Path(word) for word in words))


def _variable(name: str) -> str:
    return _dest(name).upper()


def _dest(name: str) -> str:
    return "conformance_" + name.replace("-", "_")


def describe(options: Options, spread: bool) -> str:
    how = {
        "engine": "the bundled engine",
        "replay": f"replay of {', '.join(map(str, options.replay))}",
    }
    target = how.get(options.how) or (options.url if options.how == "endpoint" else "a server started here")
    where = f"a file a worker in {options.history.parent}" if spread else options.history
    history = "" if options.how == "replay" else f" · history {where}"
    return f"{target} · scale {options.scale}{history}"


def is_asked_for(config: pytest.Config) -> bool:
    """Whether the command line points at specs; nothing is collected yet when the header is printed."""
    return any(_points_at_specs(config, arg) for arg in config.args)


def _points_at_specs(config: pytest.Config, arg: str) -> bool:
    path = (config.invocation_params.dir / arg.partition("::")[0]).resolve()
    return (
        path.suffix in (".yaml", ".yml") or path in (_HERE, _HERE / "test_specs.py") or _is_spec_folder(path)
    )


def _is_spec_folder(path: Path) -> bool:
    return any((folder / "spec.schema.json").exists() for folder in (path, *path.parents))

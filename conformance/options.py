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

if TYPE_CHECKING:
    from conformance.plan import Scale
    from conformance.session import Options
    from conformance.target import TargetOptions

_HERE = Path(__file__).parent
_OPTIONS: pytest.StashKey[Options] = pytest.StashKey()

_VALUES = {
    "endpoint": ("URL", "test the OpenAI-compatible server at URL"),
    "serve": ("CMD", 'start a server with CMD, which holds {port}: --serve "mlx_lm.server --port {port}"'),
    "replay": ("FILE", "judge a history again, without a server"),
    "engine-args": ("STR", "more flags for the bundled engine"),
    "fault": ("NAME", "start the bundled engine with this fault"),
    "faults": ("NAME", "run faults, `all` or one by name, against the specs that must catch them"),
    "history": ("FILE", "write the history there (default: .conformance/history-<UTC time>.jsonl)"),
    "golden": ("NAME", "compare with, or update, the golden outputs golden/NAME of a target of yours"),
    "request-timeout": ("S", "seconds that one request may take (default 300)"),
    "allow": ("LIST", "what an endpoint, which others may use, must bear: churn, disconnect, reset"),
    "min-judged": ("LIST", "requirements that must have been judged (default adopt/1,out/1,count/1)"),
}

_EXPECTED = {
    "URL": "a URL",
    "CMD": "a command that holds {port}",
    "FILE": "a file",
    "NAME": "a name",
    "S": "a number of seconds",
    "LIST": "names with a comma between",
}

_MAY_BE_EMPTY = ("engine-args", "allow")
"""No flags and no permissions are what an empty value says; elsewhere it is a variable that nobody set."""

_FLAGS = {
    "should": "a failed SHOULD fails the item on any target, not only on the bundled engine",
    "allow-inconclusive": "skip what is inconclusive instead of failing it",
}


def add_options(parser: pytest.Parser) -> None:
    """The titled group in `--help`; every option is also an environment variable."""
    group = parser.getgroup("conformance", "prefix-cache conformance (each also as CONFORMANCE_<NAME>)")
    for name, (metavar, text) in _VALUES.items():
        group.addoption(f"--{name}", dest=_dest(name), metavar=metavar, default=None, help=text)
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
    if targets and (extra := [name for name in ("fault", "engine-args") if option(config, name)]):
        raise pytest.UsageError(f"--{extra[0]} is for the bundled engine, not for {targets[0]}")
    if targets and _is_updating(config) and not option(config, "golden"):
        raise pytest.UsageError(
            f"--snapshot-update with {targets[0]} needs --golden NAME: whose outputs are they?"
        )
    if option(config, "faults"):
        _refuse_beside_faults(config, targets)
    if is_spread(config) and (dist := config.getoption("dist")) not in ("load", "loadgroup"):
        raise pytest.UsageError(
            f"--dist {dist}: a workload stays on one worker, as with plain -n; leave it out"
        )
    for read in (_scale, _seconds, _engine_args, _allowed):
        read(config)
    for name, check in _CHECKS.items():
        if value := option(config, name):
            check(value)


def _refuse_empty(config: pytest.Config) -> None:
    """An empty value is a variable that nobody set; to go on without would test the wrong thing."""
    wanted = {name: _EXPECTED.get(metavar, "") for name, (metavar, _) in _VALUES.items()}
    for name, expected in {**wanted, "scale": "full or ci"}.items():
        said = {f"--{name}": config.getoption(_dest(name)), _variable(name): os.environ.get(_variable(name))}
        for where, value in said.items():
            if name not in _MAY_BE_EMPTY and value is not None and not value.strip():
                raise pytest.UsageError(f"{where}: empty; expected {expected}")


def _check_endpoint(url: str) -> None:
    from conformance.wire import parse_address

    try:
        parse_address(url)
    except ValueError as error:
        raise pytest.UsageError(f"--endpoint: {error}") from None


def _check_serve(command: str) -> None:
    from conformance.launch import LaunchError, command_words

    try:
        command_words(command)
    except LaunchError as error:
        raise pytest.UsageError(f"--serve: {error}") from None


def _check_fault(name: str) -> None:
    from conformance.faults import known

    if name not in known():
        raise pytest.UsageError(f"--fault {name}: expected one of {', '.join(known())}")


def _check_history(given: str) -> None:
    path = Path(given)
    if path.is_dir():
        raise pytest.UsageError(f"--history {given}: a directory; expected a file to write")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise pytest.UsageError(f"--history {given}: {above} is no directory")


def _check_min_judged(given: str) -> None:
    from conformance.requirements import get

    words = words_of(given)
    try:
        for word in words:
            get(word)
    except KeyError as error:
        raise pytest.UsageError(f"--min-judged: {error.args[0]}") from None
    if not words:
        raise pytest.UsageError(f"--min-judged {given!r}: expected ids such as adopt/1,out/1")


def _refuse_beside_faults(config: pytest.Config, targets: list[str]) -> None:
    from conformance.faults import choose

    if targets or option(config, "fault"):
        other = targets[0] if targets else "--fault"
        raise pytest.UsageError(f"--faults runs on the bundled engine, with and without each: drop {other}")
    choose(option(config, "faults"))


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
    from conformance.record import default_path
    from conformance.session import Options

    worker = getattr(config, "workerinput", {}).get("workerid")
    history, replay = option(config, "history"), option(config, "replay")
    path = Path(history) if history else default_path(Path(), worker)
    return Options(
        how=how_of(config),
        scale=_scale(config),
        history=path.with_stem(f"{path.stem}-{worker}") if history and worker else path,
        replay=(Path(replay),) if replay else (),
        golden=option(config, "golden"),
        allow=_allowed(config),
        should=bool(option(config, "should")),
        allow_inconclusive=bool(option(config, "allow-inconclusive")),
        **({"url": option(config, "endpoint")} if how_of(config) == "endpoint" else {}),
    )


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
        timeout=_seconds(config),
        progress=progress,
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
    words = frozenset(words_of(option(config, "allow") or ""))
    unknown = sorted(words - {"churn", "disconnect", "reset"})
    if unknown:
        raise pytest.UsageError(f"--allow {unknown[0]}: churn, disconnect or reset, with a comma between")
    return words


def words_of(given: str) -> list[str]:
    return [word.strip() for word in given.split(",") if word.strip()]


def _seconds(config: pytest.Config) -> float:
    given = option(config, "request-timeout") or "300"
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise pytest.UsageError(f"--request-timeout {given}: a number of seconds above 0")
    return seconds


def _engine_args(config: pytest.Config) -> tuple[str, ...]:
    given = option(config, "engine-args") or ""
    try:
        return tuple(shlex.split(given))
    except ValueError as error:
        raise pytest.UsageError(f"--engine-args {given!r}: {error}") from None


def option(config: pytest.Config, name: str) -> Any:
    """The option's value, or that of its environment variable."""
    return config.getoption(_dest(name)) or os.environ.get(_variable(name)) or None


def _variable(name: str) -> str:
    return _dest(name).upper()


def _dest(name: str) -> str:
    return "conformance_" + name.replace("-", "_")


def describe(options: Options, spread: bool) -> str:
    how = {
        "engine": "the bundled engine",
        "replay": f"replay of {options.replay[0]}" if options.replay else "",
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


_CHECKS: dict[str, Callable[[str], None]] = {
    "endpoint": _check_endpoint,
    "serve": _check_serve,
    "fault": _check_fault,
    "history": _check_history,
    "min-judged": _check_min_judged,
}
"""What can be found wrong with a value before anything is collected."""

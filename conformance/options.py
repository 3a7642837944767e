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

from conformance.values import words_of

if TYPE_CHECKING:
    from conformance.baseline import Comparison
    from conformance.exploring import Hunting
    from conformance.plan import Scale
    from conformance.session import Options
    from conformance.target import TargetOptions

_HERE = Path(__file__).parent
_OPTIONS: pytest.StashKey[Options] = pytest.StashKey()

VALUES = {
    "endpoint": ("URL", "test the OpenAI-compatible server at URL"),
    "serve": ("CMD", 'start a server with CMD, which holds {port}: --serve "mlx_lm.server --port {port}"'),
    "replay": (
        "FILE",
        "judge a history again, without a server; given several times: a target each, one matrix",
    ),
    "engine-args": ("STR", "more flags for the bundled engine"),
    "fault": ("NAME", "start the bundled engine with this fault"),
    "faults": (
        "NAME",
        "run faults against the specs that must catch them: `all`, by name, or `pairs:100` at random",
    ),
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
    "report-kills": (
        "FILE",
        "write there what each spec, or the explorer, made of each fault (`python -m conformance kills`)",
    ),
    "report-html": ("FILE", "write them there as one page, with timelines of the bursts"),
    "expectations": ("FILE", "known deviations of the server (default: those in expectations/)"),
    "pid": ("PID", "the process behind --endpoint on this machine, so that its memory can be read"),
    "record-baseline": (
        "NAME",
        "measure the six scenarios' memory and keep it as golden/baselines/NAME.json",
    ),
    "baseline": ("NAME", "compare memory with the baseline NAME"),
    "golden": ("NAME", "compare with, or update, the golden outputs golden/NAME of a target of yours"),
    "request-timeout": ("S", "seconds that one request may take (default 300; with a fault 20)"),
    "margin": (
        "GAP",
        "logprob gap of a token's two best above which it counts as decided (default: what the dialect says;"
        " a server that computes in fp32 bears 0.001)",
    ),
    "chunk": (
        "N",
        "tokens of one prefill chunk of a server of yours (default: what it or the dialect says, which may be"
        " the server's default)",
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

EXPECTED = {
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

MANY = ("replay", "specs")
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
    for name, (metavar, text) in VALUES.items():
        action = "append" if name in MANY else "store"
        group.addoption(f"--{name}", dest=dest(name), metavar=metavar, default=None, help=text, action=action)
    for name, text in _FLAGS.items():
        group.addoption(f"--{name}", dest=dest(name), action="store_true", default=None, help=text)
    group.addoption(
        "--scale",
        dest=dest("scale"),
        choices=("full", "ci"),
        default=None,
        help="shared prefix of about 3,700 tokens, or 570 and short waits (default full; ci with -m quick)",
    )


def is_spread(config: pytest.Config) -> bool:
    """Whether specs are run on several xdist workers."""
    return config.getoption("dist", "no") != "no" and is_asked_for(config)


def runs_no_items(config: pytest.Config) -> bool:
    """Whether something else is done with what was collected than to judge it."""
    others = option(config, "dry-run") or option(config, "record-baseline")
    return bool(config.option.collectonly or others)


def read_all(config: pytest.Config) -> None:
    """Read whatever has a form of its own; raises UsageError for what has not."""
    for read in (_baseline, _scale, _seconds, _margin, _chunk, _engine_args, _allowed, _headers):
        read(config)


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


def is_updating(config: pytest.Config) -> bool:
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
    return [*map(variable, (*VALUES, *_FLAGS, "scale")), "CONFORMANCE_API_KEY"]


def options_of(config: pytest.Config) -> Options:
    """What the run was asked for; made once, since it names the history by the time."""
    if config.stash.get(_OPTIONS, None) is None:
        config.stash[_OPTIONS] = _read_options(config)
    return config.stash[_OPTIONS]


def by_fault(config: pytest.Config) -> bool:
    """Whether the items of a fault share an engine: where it meets many specs, or none alone must kill it."""
    asked = option(config, "faults") or ""
    return bool(option(config, "cross") or "+" in asked or asked.startswith("pairs:"))


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
        memory=bool(alone),
        fresh=frozenset(SCENARIOS if alone and how_of(config) != "endpoint" else ()),
        allow=_allowed(config),
        should=bool(option(config, "should")),
        allow_inconclusive=bool(option(config, "allow-inconclusive")),
        access=_shown(config),
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
    from conformance.faults import FAULT_TIMEOUT
    from conformance.target import TargetOptions

    how, fault = how_of(config), option(config, "fault")
    return TargetOptions(
        how="engine" if how == "replay" else how,
        url=option(config, "endpoint") or "",
        command=option(config, "serve") or "",
        engine_args=_engine_args(config),
        fault=fault,
        allow=_allowed(config),
        timeout=_seconds(config) or (FAULT_TIMEOUT if fault else 300.0),
        margin=_margin(config),
        chunk=_chunk(config),
        progress=progress,
        model=option(config, "model"),
        extra=_headers(config),
        pid=int(option(config, "pid") or 0) or None,
        dry=bool(option(config, "dry-run")),
        verify=_verify(config),
    )


def _verify(config: pytest.Config) -> bool | str:
    return False if option(config, "insecure") else option(config, "cacert") or True


def _shown(config: pytest.Config) -> tuple[str, ...]:
    from conformance.access import shown

    return shown(words_of(option(config, "header") or ""), os.environ, _verify(config))


def how_of(config: pytest.Config) -> Literal["engine", "serve", "endpoint", "replay"]:
    targets = targets_of(config)
    return cast(Any, targets[0].removeprefix("--")) if targets else "engine"


def targets_of(config: pytest.Config) -> list[str]:
    """Options that name a target; those of the command line before those of the environment."""
    names = ("endpoint", "serve", "replay")
    given = [f"--{name}" for name in names if config.getoption(dest(name))]
    return given or [f"--{name}" for name in names if option(config, name)]


def _scale(config: pytest.Config) -> Scale:
    chosen = option(config, "scale") or ("ci" if config.option.markexpr == "quick" else "full")
    if chosen not in ("full", "ci"):
        raise pytest.UsageError(f"CONFORMANCE_SCALE={chosen}: full or ci")
    return cast("Scale", chosen)


def _allowed(config: pytest.Config) -> frozenset[str]:
    from conformance.permission import permitted

    try:
        return permitted(option(config, "allow") or "")
    except ValueError as error:
        raise pytest.UsageError(f"--allow {error}") from None


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


def _chunk(config: pytest.Config) -> int | None:
    return _whole(config, "chunk", least=1) if option(config, "chunk") else None


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
    return config.getoption(dest(name)) or os.environ.get(variable(name)) or None


def paths_of(config: pytest.Config, name: str) -> tuple[Path, ...]:
    """The files or folders of an option that may be given several times; each once."""
    given = option(config, name) or []
    words = given if isinstance(given, list) else given.split(os.pathsep)
    return tuple(dict.fromkeys(Path(word) for word in words))


def variable(name: str) -> str:
    return dest(name).upper()


def dest(name: str) -> str:
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

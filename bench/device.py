"""`python -m bench device`: the engine on whatever device MLX has, in process, without HTTP.

Measures cold and warm bursts on one shared prefix (seconds, tokens computed and bytes of keys and values next
to the least possible), whether their replies have the bits of the same requests alone and cold, which grade
the routes of a row allow and which of them breaks it, and tokens a second next to mlx-lm's own loops on the
same weights. Three modes: `bits` and `fast` as the engine serves them, and `fixed`, decode in products of a
fixed number of rows, which the engine does not serve.

Works in phases, each printed as it ends, the JSON written anew. A phase is skipped once the budget is spent,
and says so; one that fails says why and the next begins. The first round of a burst pays for kernels that the
device compiles for a shape it has not seen; the last is what counts.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from bench import mlxlm
from bench.inprocess import (
    MODES,
    SHAPES,
    SUFFIX,
    Bench,
    Clock,
    OutOfTime,
    Setup,
    burst,
    compare,
    decode_rate,
    in_mode,
    prompts,
    seeded_weights,
)
from engine.config import ConfigError, EngineConfig
from engine.memory import CACHE_LIMIT
from engine.model import CanonicalModel
from engine.probe import BASES, SPAN, at_start, decode_as_prefill, key_padding, promise, routes

SOLOS = 3
"""Requests of a burst that are asked again alone, on a cold cache."""
BATCH = 8
"""Rows that decode together where a batch is timed."""

Result = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What to measure, on what, for how long."""

    shape: str
    setup: Setup
    ways: tuple[int, ...]
    modes: tuple[str, ...]
    rounds: int
    seed: int
    budget: float
    cache: int
    out: Path | None


def main(argv: Sequence[str]) -> int:
    plan = _plan(argv)
    mx.set_cache_limit(plan.cache)
    report = Report(plan)
    for name, measure in Lab(plan, report.clock).phases():
        report.phase(name, measure)
    return 0


# ---- the phases


class Lab:
    """One set of weights, and everything that is measured on it."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self.plan, self.clock = plan, clock
        self.config = SHAPES[plan.shape]
        self._made: dict[str, Any] = {}

    def phases(self) -> Iterator[tuple[str, Callable[[], Result]]]:
        """In order of worth: a budget that ends early has measured the first width of the first mode."""
        first, *others = self.plan.ways
        yield "weights", self.build
        for number, mode in enumerate(self.plan.modes):
            yield f"{mode}: burst of {first}", partial(self.bursts, mode, first)
            yield f"{mode}: doctor", partial(self.doctor, mode)
            yield f"{mode}: speed", partial(self.speed, mode)
            if not number:
                yield "mlx-lm: speed", self.peer
            for ways in others:
                yield f"{mode}: burst of {ways}", partial(self.bursts, mode, ways)

    def build(self) -> Result:
        weights = seeded_weights(self.config, self.plan.seed)
        self._made = {
            "weights": weights,
            "model": CanonicalModel(self.config, weights, grid=self.plan.setup.grid),
        }
        return {"bytes": sum(w.nbytes for w in weights.values())}

    def bursts(self, mode: str, ways: int) -> Result:
        """Cold and warm rounds, and some of their requests alone."""
        bench = self._bench(mode, ways)
        asked = self._prompts(ways)
        picked = sorted({round(i * (ways - 1) / (SOLOS - 1)) for i in range(SOLOS)})
        rounds, said = {}, {}
        for name in ("cold", "warm"):
            runs = [burst(bench, asked, warm=name == "warm") for _ in range(self.plan.rounds)]
            rounds[name] = [_burst(run) for run, _ in runs]
            said[name] = [runs[-1][1][i] for i in picked]
        bench.storage.reset()
        solos = [bench.ask([asked[i]], self.plan.setup.reply, salt=f"solo {i}")[0] for i in picked]
        bits = {f"bits_{name}": asdict(compare(clients, solos)) for name, clients in said.items()}
        return {**rounds, **bits, "distinct_ids_solo": [len(set(solo.ids)) for solo in solos]}

    def doctor(self, mode: str) -> Result:
        """As `python -m engine doctor` judges a model, over the same pasts."""
        model, kind = self._model(mode), "fast" if mode == "fast" else "bits"
        found = routes(model, BASES)
        self.clock.check()
        generated = decode_as_prefill(model, BASES, SPAN if kind == "fast" else 0)
        padded = key_padding(model, BASES)
        resting = [*found, generated] if kind == "fast" else found
        return {
            "promise": asdict(promise(resting, kind)),
            "startup_promise": asdict(at_start(model, kind).promise),
            "findings": [_finding(finding) for finding in (*found, generated, padded)],
        }

    def speed(self, mode: str) -> Result:
        """Tokens a second of one cold prefill, and of decode by one and by several behind the prefix."""
        bench, asked = self._bench(mode, BATCH), self._prompts(BATCH)
        done: Result = {}
        for _ in range(2):  # the first compiles
            bench.storage.reset()
            start = time.perf_counter()
            (client,) = bench.ask(asked[:1], 1, logprobs=None)
            done["prefill_tokens_s"] = len(asked[0]) / (client.times[0] - start)
            for rows in (1, BATCH):
                clients = bench.ask(asked[:rows], self.plan.setup.reply, logprobs=None)
                done[f"decode_{rows}_tokens_s"] = decode_rate([client.times for client in clients])
        return done

    def peer(self) -> Result:
        """mlx-lm on the same weights: one reply, and the first burst's requests as a batch."""
        reply, model = self.plan.setup.reply, mlxlm.network(self.config, self._made["weights"])
        asked = self._prompts(BATCH)
        for _ in range(2):  # the first compiles
            one = mlxlm.single(model, asked[0], reply, self.clock)
            many = mlxlm.batch(model, asked, reply, self.clock)
        return {
            "prefill_tokens_s": one["prefill_tokens_s"],
            "decode_1_tokens_s": one["decode_tokens_s"],
            f"decode_{BATCH}_tokens_s": many.pop("decode_tokens_s"),
            f"batch_of_{BATCH}_unshared": many,
        }

    def _model(self, mode: str) -> CanonicalModel:
        if "model" not in self._made:
            raise RuntimeError("there is no model: its weights were not made")
        return in_mode(self._made["model"], mode)

    def _bench(self, mode: str, ways: int) -> Bench:
        return Bench(self._model(mode), self.plan.setup, ways, self.clock)

    def _prompts(self, ways: int) -> list[list[int]]:
        return prompts(self.config.vocab_size, self.plan.setup, ways, self.plan.seed)


def _burst(run: Any) -> Result:
    return {**asdict(run), "computed_ratio": run.computed_ratio, "kv_ratio": run.kv_ratio}


def _finding(finding: Any) -> Result:
    difference = finding.difference if math.isfinite(finding.difference) else None
    return {**asdict(finding), "difference": difference}


# ---- the report


class Report:
    """Prints each phase as it ends and keeps the JSON file up to date."""

    def __init__(self, plan: Plan) -> None:
        self.clock = Clock(plan.budget)
        self._out = plan.out
        settings = {**asdict(plan), "out": str(plan.out or "")}
        self._body: Result = {"facts": _facts(), "settings": settings, "phases": []}
        _line(", ".join(f"{name} {value}" for name, value in self._body["facts"].items()))
        self._write()

    def phase(self, name: str, measure: Callable[[], Result]) -> None:
        """Run one phase; whatever goes wrong in it is a result too."""
        began = self.clock.spent
        try:
            self.clock.check()
            noted: Result = {"result": measure()}
        except OutOfTime as error:
            noted = {"skipped": str(error)}
        except Exception as error:  # an operation the device lacks must not cost the other phases
            noted = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
        mx.clear_cache()
        self._body["phases"].append({"name": name, "seconds": self.clock.spent - began, **noted})
        self._write()
        _show(self._body["phases"][-1])

    def _write(self) -> None:
        if self._out is not None:
            self._out.write_text(json.dumps(self._body, indent=1), encoding="utf-8")


def _facts() -> dict[str, str]:
    return {
        "device": f"{mx.default_device().type.name} {mx.device_info().get('device_name', '')}".strip(),
        "mlx": version("mlx"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _show(phase: Result) -> None:
    _line(f"\n{phase['name']} ({phase['seconds']:.1f} s)")
    for word in ("skipped", "failed"):
        if word in phase:
            _line(f"  {word}: {phase[word]}")
    result = phase.get("result", {})
    if "cold" in result:
        _show_bursts(result)
    elif "findings" in result:
        _show_doctor(result)
    else:
        _show_values(result)


def _show_bursts(result: Result) -> None:
    for name in ("cold", "warm"):
        first, last = result[name][0], result[name][-1]
        bits = result[f"bits_{name}"]
        _say(f"{name}: wall, last first token, s", f"{last['wall_s']:.3f}, {last['last_first_token_s']:.3f}")
        _say(f"{name}: wall of the first round, s", f"{first['wall_s']:.3f}")
        ratio = f"{last['computed']} / {last['least_computed']} = {last['computed_ratio']:.3f}"
        _say(f"{name}: tokens computed / least", ratio)
        _say(f"{name}: adopters, cached tokens", f"{last['adopters']}, {last['cached_tokens']}")
        peak, least = last["kv_peak"] / 2**20, last["kv_least"] / 2**20
        _say(f"{name}: KV MiB at peak / least", f"{peak:.2f} / {least:.2f} = {last['kv_ratio']:.3f}")
        reserved, held = last["kv_reserved"] / 2**20, last["mlx_peak"] / 2**20
        _say(f"{name}: MiB reserved, MLX peak over before", f"{reserved:.2f}, {held:.2f}")
        equal = f"{bits['equal']} of {bits['of']} (ids: {bits['same_ids']} of {bits['of']})"
        _say(f"{name}: bit-equal to solo cold", equal)
        _say(f"{name}: largest logprob difference", f"{bits['largest_logprob_difference']:.1e}")


def _show_doctor(result: Result) -> None:
    for finding in result["findings"]:
        gap = "beyond numbers" if finding["difference"] is None else f"by up to {finding['difference']:.1e}"
        _say(f"rows change with: {finding['what']}", "no" if finding["equal"] else f"YES, {gap}")
    for name in ("promise", "startup_promise"):
        found = result[name]
        _say(name.replace("_", " "), f"{found['grade']}: {found['reason']}")


def _show_values(result: Result, before: str = "") -> None:
    for name, value in result.items():
        if isinstance(value, dict):
            _show_values(value, f"{name} ")
        else:
            _say(f"{before}{name}", f"{value:.3f}" if isinstance(value, float) else str(value))


def _say(what: str, value: str) -> None:
    _line(f"  {what:<44} {value}")


def _line(text: str) -> None:
    print(text, flush=True)


# ---- the command line


def _plan(argv: Sequence[str]) -> Plan:
    parser = _parser()
    given = parser.parse_args(argv)
    positions = SHAPES[given.shape].max_position_embeddings
    rows = given.prefix + SUFFIX + given.reply
    if rows > positions:
        parser.error(f"--prefix and --reply: {rows} tokens, but {given.shape} has {positions} positions")
    try:
        EngineConfig(block_size=given.block, grid=given.grid, chunk=given.chunk, max_batch=max(given.ways))
    except ConfigError as error:
        parser.error(str(error).replace("--block-size", "--block"))
    setup = Setup(given.prefix, given.reply, given.block, given.grid, given.chunk, given.slab, given.share)
    return Plan(
        given.shape, setup, given.ways, given.modes, given.rounds, given.seed, given.budget,
        given.cache_mib << 20, given.out,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench device",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = Setup()
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="small", help="network of seeded weights (default: small)")
    add("--prefix", type=_whole, default=sizes.prefix, help="shared tokens (default: %(default)s)")
    add("--ways", type=_wholes, default=(8, 64), help="widths of the bursts (default: 8,64)")
    add("--reply", type=_whole, default=sizes.reply, help="tokens of a reply (default: %(default)s)")
    add("--block", type=_whole, default=sizes.block, help="tokens of a block (default: %(default)s)")
    add("--grid", type=_whole, default=sizes.grid, help="rows of a prefill tile (default: %(default)s)")
    add("--chunk", type=_whole, default=sizes.chunk, help="prefill tokens a step (default: %(default)s)")
    add("--slab", type=_whole, help="blocks that memory grows by (default: the store's choice)")
    add("--no-sharing", dest="share", action="store_false", help="the arm that adopts nothing")
    add("--modes", type=_modes, default=tuple(MODES), help=f"of {','.join(MODES)} (default: all)")
    add("--rounds", type=_whole, default=2, help="of each burst; the last counts (default: %(default)s)")
    add("--seed", type=int, default=227, help="of weights and prompts (default: %(default)s)")
    add("--budget", type=float, default=400, help="seconds, then phases are skipped (default: %(default)s)")
    cache = CACHE_LIMIT >> 20
    add("--cache-mib", type=_whole, default=cache, help="freed memory that MLX keeps (default: %(default)s)")
    add("--out", type=Path, help="JSON file, written after each phase")
    return parser


def _whole(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _wholes(text: str) -> tuple[int, ...]:
    return tuple(_whole(part) for part in text.split(","))


def _modes(text: str) -> tuple[str, ...]:
    for name in text.split(","):
        if name not in MODES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(MODES)}")
    return tuple(text.split(","))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

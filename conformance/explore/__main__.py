"""`python -m conformance.explore N`: make up N workloads, judge them, write the smallest one that fails.

Knows the command line and the order of a hunt. Does not know pytest, which starts this in a process of its
own (`conformance/exploring.py`): the engine may live here. Exit status 0: nothing failed, 1: something did,
2: wrong usage or no target.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from conformance.access import headers_of
from conformance.backend import Backend
from conformance.dialect import DialectError
from conformance.explore.crew import Target, told
from conformance.explore.ground import Ground, inside
from conformance.explore.hunt import Failure, Hunt, accusers, gathered, rounds
from conformance.explore.write import pruned, written
from conformance.fleet import Fleet
from conformance.permission import PERMISSIONS
from conformance.session import Options, Session
from conformance.target import TargetError, TargetOptions
from conformance.values import words_of

ABOUT = """\
Make up workloads in the spec language at random, judge each with the judges of the specs, make the first one
that fails as small as it gets, and write it as a spec file. Without --endpoint or --serve the bundled engine
runs in this process, and on other cores in helpers, with the model that costs milliseconds.

  python -m conformance.explore 2000                          the healthy engine: nothing may fail
  python -m conformance.explore 500 --fault ignore_salt       ... with a fault: something must
  python -m conformance.explore 100 --endpoint http://127.0.0.1:8000 --allow disconnect
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = parser().parse_args(argv)
    try:
        with (
            _outside(args) if args.endpoint or args.serve else inside(args.engine_args, args.fault) as ground
        ):
            found = _hunted(args, ground)
            path = _written(args, ground, found)
    except (ValueError, KeyError, TargetError, DialectError) as error:
        print(f"python -m conformance.explore: {error.args[0] if error.args else error}", file=sys.stderr)
        return 2
    print(json.dumps(report(found, path)) if args.json else "\n".join(_lines(found, path)), flush=True)
    return int(found.failure is not None)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m conformance.explore",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("examples", type=int, metavar="N", help="workloads to make up at most")
    made.add_argument("--seed", type=int, default=0, help="of all random choice (default 0)")
    made.add_argument("--seconds", type=float, help="stop after so many seconds")
    made.add_argument("--out", type=Path, default=Path(".conformance"), metavar="DIR",
                      help="write what fails to DIR/explored (default .conformance)")  # fmt: skip
    made.add_argument("--json", action="store_true", help="report as one JSON object")
    ours = made.add_argument_group("the bundled engine")
    ours.add_argument("--fault", metavar="NAME", help="with this fault")
    ours.add_argument("--engine-args", default="", metavar="STR", help='flags, such as "--model tiny"')
    yours = made.add_argument_group("a server of yours")
    yours.add_argument("--endpoint", metavar="URL", help="one that runs already")
    yours.add_argument("--serve", metavar="CMD", help="one that CMD, which holds {port}, starts")
    yours.add_argument("--model", help="ask for this model (default: the first it lists)")
    yours.add_argument("--allow", default="", metavar="LIST", help="what an endpoint must bear: "
                       + ", ".join(PERMISSIONS))  # fmt: skip
    yours.add_argument("--header", default="", metavar="LIST", help="HEADER=VARIABLE,... to send")
    yours.add_argument("--cacert", metavar="FILE", help="certificates to trust")
    yours.add_argument("--insecure", action="store_true", help="do not check the certificate")
    yours.add_argument("--request-timeout", type=float, default=60.0, metavar="S", help="for one request")
    return made


# ---- where


class _Opened(Backend):
    """A backend whose servers are open already."""

    def __init__(self, options: TargetOptions, fleet: Fleet) -> None:
        super().__init__(options)
        self._fleet = fleet

    def open(self) -> Fleet:
        return self._fleet


@contextmanager
def _outside(args: argparse.Namespace) -> Iterator[Ground]:
    from conformance.explore.outside import Outside

    options = _target(args)
    fleet = Backend(options).open()
    with tempfile.TemporaryDirectory() as folder:
        run = Options(
            how=options.how, scale="ci", history=Path(folder) / "history.jsonl", allow=options.allow
        )
        session = Session(run, _Opened(options, fleet))
        try:
            facts = fleet.main().facts
            may = tuple(word for word in PERMISSIONS if options.may(word))
            yield Ground(facts, Outside(session, Path(folder)), ("default",), may)
        finally:
            session.close()
            fleet.close()


def _target(args: argparse.Namespace) -> TargetOptions:
    return TargetOptions(
        how="endpoint" if args.endpoint else "serve",
        url=args.endpoint or "",
        command=args.serve or "",
        timeout=args.request_timeout,
        model=args.model,
        allow=frozenset(words_of(args.allow)),
        extra=headers_of(words_of(args.header), os.environ),
        verify=False if args.insecure else args.cacert or True,
    )


# ---- what came of it


def _hunted(args: argparse.Namespace, ground: Ground) -> Hunt:
    target = Target(args.engine_args, args.fault, args.seconds)
    chase = ground.chase(args.seconds)
    with closing(told(chase, rounds(args.examples, args.seed), ground.spare, target)) as parts:
        return gathered(parts)


def _written(args: argparse.Namespace, ground: Ground, found: Hunt) -> Path | None:
    """The file of what failed: without what only other expectations needed, where it fails without that."""
    if found.failure is None:
        return None
    small = pruned(found.failure.data, found.failure.accusers)
    again = accusers(ground.judge(small))
    if again and not (ground.healthy and accusers(ground.healthy(small))):
        found.failure = Failure(small, again)
    return written(args.out, found.failure, _about(args, ground))


def _about(args: argparse.Namespace, ground: Ground) -> list[str]:
    flags = f" --engine-args {shlex.quote(args.engine_args)}" if args.engine_args else ""
    on = f"{ground.facts.name} {ground.facts.version}".strip()
    fault = f" with the fault {args.fault}" if args.fault else ""
    return [f"Found on {on}{fault} by: explore {args.examples} --seed {args.seed}{flags}"]


def report(found: Hunt, path: Path | None) -> dict[str, Any]:
    """Plain values, as `--json` prints them."""
    accused = found.failure.accusers if found.failure else []
    return {
        "examples": found.examples,
        "seconds": round(found.seconds, 2),
        "shrinking": found.shrinking,
        "by": found.by,
        "statuses": dict(found.statuses),
        "errors": found.errors,
        "alarms": found.alarms,
        "flaky": found.is_flaky,
        "file": str(path) if path else None,
        "failed": [
            {"judge": e.judge, "requirement": v.requirement, "witness": v.witness or v.reason}
            for e, v in accused
        ],
    }


def _lines(found: Hunt, path: Path | None) -> Iterator[str]:
    told = report(found, path)
    counts = ", ".join(f"{count} {status}" for status, count in told["statuses"].items())
    yield f"{found.examples} workloads in {found.seconds:.1f} s; verdicts: {counts}"
    yield from (f"error: {reason}" for reason in found.errors)
    yield from (f"fails on the healthy engine too: {alarm}" for alarm in found.alarms)
    for failed in told["failed"]:
        yield f"FAILED {failed['judge']} ({failed['requirement']}): {failed['witness']}"
    if path is not None:
        yield f"made smaller with {found.shrinking} more; written to {path}"
    if found.is_flaky:
        yield "the same workload did not fail every time"


if __name__ == "__main__":
    sys.exit(main())

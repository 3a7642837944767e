"""`python -m conformance`: look at specs, the law, servers and histories from the shell.

Knows that a module of `commands/` is a command. Does not know any of them, nor pytest; running specs is
`pytest conformance/`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from conformance.commands import modules


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 well, 1 something is wrong in a file, 2 wrong usage."""
    args = _parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # `| head` has seen enough. What is left in the buffer must not be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m conformance",
        description="Look at conformance specs, the law and servers. To run specs: pytest conformance/",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in modules():
        module.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())

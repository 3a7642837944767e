"""`python -m bench [NAME ...]`: measurements of the bundled engine.

    warm cold latency memory start     the figures of the seed acceptance (the default: all five)
    soak                               thousands of requests, a third of them cancelled: does all come back
    peers                              the same bursts against mlx_lm.server on the same weights and BLAS
    index                              cost of look-up, adoption and a scheduler's step, without a model
    device                             bursts, bits and speed in process on MLX's device, meant for a GPU
    skew                               how close a burst leaves, and what the client costs while it streams
    alarms                             the quick set under many conditions: is the healthy engine ever accused

Each of the last six has options of its own: `python -m bench soak --help`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType

_OWN = ("soak", "peers", "index", "device", "skew", "alarms")


def main(argv: Sequence[str]) -> int:
    """Only the bench that is asked for is imported: `device` runs where the others' libraries are missing."""
    own = bool(argv) and argv[0] in _OWN
    if argv and argv[0] in ("-h", "--help"):
        print(__doc__)
    bench = import_module(f"bench.{argv[0]}" if own else "bench.acceptance")
    status: int = bench.main(argv[1:] if own else argv)
    return status


def _end(number: int, frame: FrameType | None) -> None:
    """As Ctrl-C: servers that a bench started end with it. Who asks twice must not stop that."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    sys.exit(main(sys.argv[1:]))

"""`python -m bench [NAME ...]`: measurements of the bundled engine.

    warm cold latency memory start     the figures of the seed acceptance (the default: all five)
    soak                               thousands of requests, a third of them cancelled: does all come back
    peers                              the same bursts against mlx_lm.server on the same weights and BLAS
    index                              cost of look-up, adoption and a scheduler's step, without a model

Each of the last three has options of its own: `python -m bench soak --help`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from bench import acceptance, index, peers, soak

_OWN: dict[str, Callable[[Sequence[str]], int]] = {
    "soak": soak.main,
    "peers": peers.main,
    "index": index.main,
}


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] in _OWN:
        return _OWN[argv[0]](argv[1:])
    if argv and argv[0] in ("-h", "--help"):
        print(__doc__)
    return acceptance.main(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

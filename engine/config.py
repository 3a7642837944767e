"""What can be set about the engine, and which values make sense.

Knows the names, defaults and bounds of every setting. Does not know what the settings do, whether a model
or a fault of that name exists, or where the values came from (command line or test). Imports nothing of
MLX, so that a BLAS library can still be chosen before MLX loads.
"""

from __future__ import annotations

from dataclasses import dataclass

STORAGES = ("paged", "dense")
RESERVES = ("full", "prompt")
DETERMINISMS = ("bits", "fast")


class ConfigError(ValueError):
    """A setting that cannot be: `field` names it, the message says what would be right."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"--{field.replace('_', '-')}: {problem}")
        self.field = field


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine process; raises ConfigError on construction when a value makes no sense.

    block_size, grid, chunk: tokens. blocks: the pool's budget in blocks, each spanning all layers. share
    False never adopts (the no-sharing arm). reserve: what a paged store promises at admission, "full" (all
    the request may ever write) or "prompt" (what it has and one block a choice; more may cost a preemption).
    hash_bytes: length of a block's hash; shortened only so that hashes collide (key/4). drain: seconds that a
    first signal leaves to what runs. fault names a mutation of `engine.faults`.
    determinism: "bits" (a row has its bits whatever runs beside it) or "fast" (as they come). blas:
    "auto", "builtin" or the path of a library. port 0 means any free one.
    """

    model: str = "tiny"
    model_seed: int | None = None
    storage: str = "paged"
    block_size: int = 32
    blocks: int = 4096
    grid: int = 32
    chunk: int = 256
    max_batch: int = 8
    max_queue: int = 1024
    reserve: str = "full"
    hash_bytes: int = 16
    drain: int = 10
    host: str = "127.0.0.1"
    port: int = 8000
    fault: str | None = None
    test_mode: bool = False
    determinism: str = "bits"
    blas: str = "auto"
    share: bool = True

    def __post_init__(self) -> None:
        for field, (low, high) in _BOUNDS.items():
            _check_whole(field, getattr(self, field), low, high)
        if self.model_seed is not None:
            _check_whole("model_seed", self.model_seed, 0, 2**63 - 1)
        for field in ("model", "host", "blas"):
            if not getattr(self, field):
                raise ConfigError(field, "must not be empty")
        if self.storage not in STORAGES:
            raise ConfigError("storage", f"{self.storage!r} is not one of {', '.join(STORAGES)}")
        if self.reserve not in RESERVES:
            raise ConfigError("reserve", f"{self.reserve!r} is not one of {', '.join(RESERVES)}")
        if self.determinism not in DETERMINISMS:
            problem = f"{self.determinism!r} is not one of {', '.join(DETERMINISMS)}"
            raise ConfigError("determinism", problem)
        if self.block_size % self.grid and self.grid % self.block_size:
            problem = f"{self.grid} and the block size ({self.block_size} tokens): one must divide the other"
            raise ConfigError("grid", problem)
        if self.chunk % self.grid:
            raise ConfigError("chunk", f"{self.chunk} is not a multiple of the grid ({self.grid} tokens)")


# Upper bounds only keep typing errors from asking for memory no machine has.
_BOUNDS = {
    "block_size": (1, 4096),
    "blocks": (1, 2**24),
    "grid": (1, 4096),
    "chunk": (1, 2**20),
    "max_batch": (1, 1024),
    "max_queue": (1, 2**20),
    "hash_bytes": (0, 16),
    "drain": (0, 3600),
    "port": (0, 65535),
}


def _check_whole(field: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(field, f"{value!r} is not a whole number")
    if not low <= value <= high:
        raise ConfigError(field, f"{value} is outside {low}..{high}")

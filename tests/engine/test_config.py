"""Which settings make sense, and how those that do not are named."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import ConfigError, EngineConfig


def test_defaults_make_sense() -> None:
    config = EngineConfig()
    assert (config.model, config.storage, config.block_size, config.max_batch) == ("tiny", "paged", 32, 8)
    assert (config.grid, config.chunk, config.share, config.blas) == (32, 256, True, "auto")


@pytest.mark.parametrize(
    "fields",
    [
        {"block_size": 1, "blocks": 1, "grid": 1, "chunk": 1},
        {"grid": 128, "chunk": 128},
        {"port": 0},
        {"port": 65535},
        {"storage": "dense"},
        {"model_seed": 0},
        {"reserve": "prompt"},
        {"hash_bytes": 0},
        {"drain": 0},
        {"determinism": "fast"},
    ],
)
def test_edges_are_legal(fields: dict[str, Any]) -> None:
    config = EngineConfig(**fields)
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"block_size": 0}, "--block-size: 0 is outside 1..4096"),
        ({"blocks": -5}, "--blocks: -5 is outside"),
        ({"grid": 0}, "--grid: 0 is outside"),
        ({"chunk": 0}, "--chunk: 0 is outside"),
        ({"max_batch": 0}, "--max-batch: 0 is outside"),
        ({"max_queue": 0}, "--max-queue: 0 is outside"),
        ({"port": 65536}, "--port: 65536 is outside 0..65535"),
        ({"model_seed": -1}, "--model-seed: -1 is outside"),
        ({"blocks": 1.5}, "--blocks: 1.5 is not a whole number"),
        ({"blocks": True}, "--blocks: True is not a whole number"),
        ({"drain": -1}, "--drain: -1 is outside 0..3600"),
        ({"hash_bytes": 17}, "--hash-bytes: 17 is outside 0..16"),
        ({"reserve": "some"}, "--reserve: 'some' is not one of full, prompt"),
        ({"storage": "heap"}, "--storage: 'heap' is not one of paged, dense"),
        ({"determinism": "exact"}, "--determinism: 'exact' is not one of bits, fast"),
        ({"chunk": 48}, "--chunk: 48 is not a multiple of the grid (32 tokens)"),
        ({"grid": 512}, "--chunk: 256 is not a multiple of the grid (512 tokens)"),
        ({"model": ""}, "--model: must not be empty"),
        ({"host": ""}, "--host: must not be empty"),
        ({"blas": ""}, "--blas: must not be empty"),
    ],
)
def test_what_makes_no_sense_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**fields)
    assert str(caught.value).startswith(said)
    assert said.startswith(f"--{caught.value.field.replace('_', '-')}:")

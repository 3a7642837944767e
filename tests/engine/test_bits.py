"""Warm equals cold to the bit, over HTTP, on both BLAS libraries; and the fault that must break it.

The wheel's own BLAS is bit-equal whatever one does, so the same test also runs with OpenBLAS, where a
product's rounding depends on its shape and an engine without canonical compute fails (out/1, out/2).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.client import Reply, Server, engine
from engine.blas import OPENBLAS, available

N, SHARED, SUFFIX, REPLY = 5, 600, 24, 24


needs_openblas = pytest.mark.skipif(
    not available(),
    reason=f"{OPENBLAS} is not installed (Debian: libopenblas0); rounding is exact without",
)
BLAS = ["builtin", pytest.param("auto", marks=needs_openblas)]


def prompts(server: Server) -> list[list[int]]:
    shared = server.prompt(SHARED, 1)
    return [shared + server.prompt(SUFFIX, 10 + i) for i in range(N)]


def bits(replies: Sequence[Reply]) -> list[tuple[list[int], list[float]]]:
    return [(reply.ids, reply.logprobs) for reply in replies]


def solos(server: Server, asked: list[list[int]]) -> list[Reply]:
    return [server.burst([prompt], f"solo{i}", REPLY)[0] for i, prompt in enumerate(asked)]


@pytest.mark.parametrize("blas", BLAS)
@pytest.mark.parametrize("grid", [32, 128])
def test_each_reply_of_a_warm_burst_has_the_bits_of_its_solo_cold_run(blas: str, grid: int) -> None:
    with engine("--blas", blas, "--grid", str(grid)) as server:
        asked = prompts(server)
        server.burst([asked[0][:SHARED]], "warm", 2)
        warm = server.burst(asked, "warm", REPLY)
        assert [reply.cached for reply in warm] == [(SHARED - 1) // grid * grid] * N
        assert bits(warm) == bits(solos(server, asked))
        assert all(len(reply.logprobs) == REPLY for reply in warm)


@pytest.mark.parametrize("blas", BLAS)
def test_a_cold_burst_has_the_bits_of_solo_runs_too(blas: str) -> None:
    with engine("--blas", blas) as server:
        asked = prompts(server)
        burst = server.burst(asked, "together", REPLY)
        assert sum(reply.cached > 0 for reply in burst) == N - 1
        assert bits(burst) == bits(solos(server, asked))


@pytest.mark.parametrize("blas", BLAS)
def test_a_turn_that_adopts_generated_tokens_has_the_bits_of_a_cold_one(blas: str) -> None:
    with engine("--blas", blas) as server:
        prompt = server.prompt(90, 1)
        reply = server.burst([prompt], "talk", 80)[0]
        turn = prompt + reply.ids + server.prompt(8, 2)
        warm = server.burst([turn], "talk", REPLY)[0]
        cold = server.burst([turn], "cold", REPLY)[0]
        assert bits([warm]) == bits([cold])
        # What decode wrote is published only where it has the bits that prefill gives.
        assert warm.cached == (160 if server.stats()["generated_reusable"] else 64)


@needs_openblas
def test_rows_in_the_shape_of_the_batch_do_not_have_them() -> None:
    with engine("--blas", "auto", "--fault", "shape_dependent_rows") as server:
        asked = prompts(server)
        server.burst([asked[0][:SHARED]], "warm", 2)
        warm = server.burst(asked, "warm", REPLY)
        assert all(reply.cached for reply in warm)
        assert bits(warm) != bits(solos(server, asked))


def test_overwriting_one_stored_block_changes_every_borrower_and_nobody_else() -> None:
    with engine("--test-mode") as server:
        asked = prompts(server)
        server.burst([asked[0][:SHARED]], "warm", 2)
        private = bits(server.burst(asked, "private*", REPLY))
        before = bits(server.burst(asked, "warm", REPLY))
        first = server.post(
            "/v1/completions", {"prompt": asked[0], "cache_salt": "warm", "max_tokens": 1, "trace": True}
        )
        server.post("/v1/test/overwrite", {"block": first["trace"]["adopted_blocks"][3]})
        after = bits(server.burst(asked, "warm", REPLY))
        assert all(old[1] != new[1] for old, new in zip(before, after, strict=True))
        assert bits(server.burst(asked, "private*", REPLY)) == private == before

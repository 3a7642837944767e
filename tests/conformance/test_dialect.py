"""Dialect files: the shipped ones load, wrong ones are refused with the place, values are read exactly."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from conformance.dialect import (
    Claim,
    Dialect,
    DialectError,
    Reading,
    Stats,
    as_json,
    dialects,
    first,
    load,
    metrics,
    number,
    pick,
    read_stats,
)
from conformance.history import Facts
from conformance.launch import engine_command
from engine.cli import build_parser, config_of
from engine.config import EngineConfig
from engine.worker import Worker
from tests.conformance.builders import facts
from tests.engine.rig import Rig

FACTS = Facts(dialect="d", name="d", how="serve", block=16, bytes_per_block=1024, pool_blocks=99)

PAGE = """# HELP vllm:kv_cache_usage_perc usage
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m{1}"} 0.25
vllm:kv_cache_usage_perc_other 7
vllm:prefix_cache_hits_total{engine="0"} 64.0
vllm:prefix_cache_hits_total{engine="1"} 32.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0
"""


def test_the_specific_families_are_tried_before_the_general_ones() -> None:
    names = [known.dialect for known in dialects()]
    hosted = ["openai", "deepseek", "anthropic"]
    specific = ["mlxcel", "omlx", "rapid-mlx", "vllm-mlx", "lmdeploy", "tensorrt-llm", "sglang", "vllm"]
    general = ["llama-server", "ollama", "mlx-lm", "transformers", "generic"]
    assert names == [*hosted, "engine", *specific, *general]


@pytest.mark.parametrize("known", dialects(), ids=lambda known: known.dialect)
def test_only_the_general_family_fits_every_server(known: Dialect) -> None:
    assert bool(known.recognise) == (known.dialect != "generic")


@pytest.mark.parametrize("known", dialects(), ids=lambda known: known.dialect)
def test_every_family_can_be_launched_as_it_is(known: Dialect) -> None:
    assert known.profiles["default"].args == []
    assert known.cold_profile is None or known.cold_profile in known.profiles


@pytest.mark.parametrize("known", dialects(), ids=lambda known: known.dialect)
def test_every_claim_not_made_says_where_that_is_known_from(known: Dialect) -> None:
    ours = "docs/requirements.md" if known.dialect == "engine" else "https://"
    assert all(claim.reason and claim.link.startswith((ours, "https://")) for claim in known.claims.values())


def test_a_claim_about_certain_facts_is_none_about_others() -> None:
    engine = next(known for known in dialects() if known.dialect == "engine")
    assert engine.not_claimed(facts(sharing="all")) == {}
    excused = engine.not_claimed(facts(sharing="one_shot"))
    shared = ["adopt/1", "adopt/2", "adopt/3", "adopt/4", "foot/1", "foot/3", "store/2", "store/3"]
    assert sorted(excused) == shared
    assert "until it is given back" in excused["adopt/1"].reason


def test_a_claim_about_no_fact_is_refused() -> None:
    with pytest.raises(ValidationError, match="no such fact: shareing"):
        Claim(reason="by design", when={"shareing": "one_shot"})


def test_a_claim_without_facts_is_about_every_server() -> None:
    assert Claim(reason="by design").is_about(facts(sharing="all"))


def test_the_engine_s_profiles_are_options_that_it_has() -> None:
    engine = next(known for known in dialects() if known.dialect == "engine")
    for profile in engine.profiles.values():
        arguments = build_parser().parse_args(engine_command(profile.args)[3:])
        config_of(arguments)


def _engine(profile: str) -> Rig:
    """The engine that this launch profile makes, but for its model."""
    dialect = next(known for known in dialects() if known.dialect == "engine")
    arguments = build_parser().parse_args(engine_command(dialect.profiles[profile].args)[3:])
    settings = asdict(config_of(arguments))
    return Rig(**{name: value for name, value in settings.items() if name != "model"})


def test_every_number_that_the_engine_is_read_for_is_told() -> None:
    (stats,) = next(known for known in dialects() if known.dialect == "engine").stats
    worker = Worker(EngineConfig(model="digest", blocks=16))
    worker.start()
    worker.stop()
    told = read_stats(stats, json.dumps(worker.stats()), FACTS)
    assert set(told) == set(stats.values)


@pytest.mark.parametrize(("profile", "preempts"), [("tight", False), ("overcommit", True)])
def test_growth_preempts_where_room_was_promised_for_prompts_alone(profile: str, preempts: bool) -> None:
    rig = _engine(profile)
    clients = [rig.add(rig.prompt(200, seed), max_tokens=300) for seed in range(4)]
    rig.drain()
    assert all(client.done for client in clients)
    assert (rig.scheduler.counts["preemptions_total"] > 0) == preempts


@pytest.mark.parametrize("profile", ["tight", "overcommit"])
def test_one_and_a_half_long_prompts_fit(profile: str) -> None:
    rig = _engine(profile)
    rig.run(rig.prompt(1024, 1), max_tokens=1)
    rig.run(rig.prompt(512, 2), max_tokens=1)
    assert rig.paged.counts["evictions_lru"] == 0
    rig.run(rig.prompt(64, 3), max_tokens=1)
    assert rig.paged.counts["evictions_lru"] > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dialect: x", r"x.yaml: name: Field required"),
        ("dialect: x\nname: x\norder: 1\nspeed: 3", r"x.yaml: speed: Extra inputs"),
        ("dialect: x\nname: x\norder: 1\nfacts: {blocks: 3}", r"x.yaml: facts: .*no such fact: blocks"),
        ("dialect: x\nname: x\norder: 1\nstats: [{get: /s, values: {lives: a}}]", r"x.yaml: stats.0.values"),
        (
            "dialect: x\nname: x\norder: 1\nrecognise: [{path: a}]",
            r"x.yaml: recognise.0: .*either a page \(get\) or a host",
        ),
        (
            "dialect: x\nname: x\norder: 1\nrecognise: [{get: /a, path: b, text: c}]",
            r"x.yaml: recognise.0: .*in one way: path, header or text",
        ),
        (
            "dialect: x\nname: x\norder: 1\nstats: [{get: /s, values: {preempted: a}}]",
            r"x.yaml: stats.0.values.preempted.*'preemptions'",
        ),
        ("dialect: [x", r"x.yaml: (?s:.*)expected ',' or ']'"),
        ("just words", r"x.yaml: : Input should be a valid dictionary"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(DialectError, match=message):
        load(tmp_path / "x.yaml")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DialectError, match="No such file"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a.b", 1),
        ("a", {"b": 1, "zero": 0}),
        ("a.zero", 0),
        ("list[1].x", 20),
        ("list[*].x", [10, 20]),
        ("list[*]", [{"x": 10}, {"x": 20}, {"y": 5}]),
        ("a.none", None),
        ("a.b.c", None),
        ("list[7].x", None),
        ("a[0]", None),
        ("a[*].x", None),
        ("list[*].z", []),
        ("list.x", None),
    ],
)
def test_a_path_finds_what_is_there_and_nothing_else(path: str, value: Any) -> None:
    data = {"a": {"b": 1, "zero": 0}, "list": [{"x": 10}, {"x": 20}, {"y": 5}]}
    assert pick(data, path) == value


def test_the_first_path_that_is_there_counts_and_0_is_there() -> None:
    assert first({"b": 0, "c": 5}, ["a", "b", "c"]) == 0
    assert first({"b": None}, ["a", "b"]) is None


def test_what_is_no_json_is_nothing() -> None:
    assert as_json('{"a": 1}') == {"a": 1}
    assert as_json("<html>") is None


def test_metrics_are_read_by_their_exact_name() -> None:
    found = metrics(PAGE, frozenset(["vllm:kv_cache_usage_perc", "vllm:cache_config_info", "absent"]))
    assert found["vllm:kv_cache_usage_perc"] == [({"engine": "0", "model_name": "m{1}"}, 0.25)]
    assert found["vllm:cache_config_info"][0][0]["block_size"] == "16"
    assert set(found) == {"vllm:kv_cache_usage_perc", "vllm:cache_config_info"}


def test_a_page_that_is_no_metrics_is_empty() -> None:
    assert metrics("a {{{ broken", frozenset(["a"])) == {}


@pytest.mark.parametrize(
    ("value", "found"),
    [(3, 3.0), (0, 0.0), ([1, 2.5, None], 3.5), ([], None), (True, None), ("3", None), (None, None)],
)
def test_only_numbers_count(value: Any, found: float | None) -> None:
    assert number(value) == found


def test_json_counters_are_brought_to_blocks() -> None:
    stats = Stats(
        get="/s",
        values={
            "live": Reading(of="held", unit="tokens"),
            "free": Reading(of="bytes_free", unit="bytes"),
            "total": "blocks",
            "running": "absent",
            "hits_tokens": "hits",
        },
    )
    page = '{"held": 64, "bytes_free": 5120, "blocks": 9, "hits": 33}'
    assert read_stats(stats, page, FACTS) == {"live": 4.0, "free": 5.0, "total": 9.0, "hits_tokens": 33.0}


def test_a_unit_of_unknown_size_gives_nothing() -> None:
    stats = Stats(get="/s", values={"live": Reading(of="held", unit="tokens"), "free": "free"})
    unknown = FACTS.model_copy(update={"block": None})
    assert read_stats(stats, '{"held": 64, "free": 1}', unknown) == {"free": 1.0}


def test_a_share_of_the_pool_becomes_blocks_and_series_add_up() -> None:
    values: dict[Any, Any] = {
        "live": {"of": "vllm:kv_cache_usage_perc", "times": "pool_blocks"},
        "hits_tokens": "vllm:prefix_cache_hits_total",
        "waiting": "vllm:num_requests_waiting",
    }
    stats = Stats.model_validate({"get": "/metrics", "format": "prometheus", "values": values})
    assert read_stats(stats, PAGE, FACTS) == {"live": 24.75, "hits_tokens": 96.0}
    assert read_stats(stats, PAGE, FACTS.model_copy(update={"pool_blocks": None})) == {"hits_tokens": 96.0}


@pytest.mark.parametrize("page", ["", "<html>", "[]", "null"])
def test_a_page_of_something_else_gives_nothing(page: str) -> None:
    assert read_stats(Stats(get="/s", values={"live": "live"}), page, FACTS) == {}


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1" + "0" * 400, '"3"', "true", "[]"])
def test_what_is_no_finite_number_is_no_gauge(value: str) -> None:
    assert number(as_json(value)) is None


def test_brackets_without_end_are_no_json() -> None:
    assert as_json("[" * 100_000) is None


@pytest.mark.parametrize("line", ["a{", 'a{b="c} 1', "a one", 'a{"', "a"])
def test_a_line_that_is_no_metric_is_none(line: str) -> None:
    assert metrics(line, frozenset(["a"])) == {}

"""`dialects`, `probe` and `calibrate` from the shell: what they print, and how they end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conformance import __main__ as command
from conformance.launch import free_port
from conformance.target import Target
from tests.conformance.fakeserver import CERTIFICATE, Behaviour, fake_server

VLLM: dict[str, Any] = {
    "/v1/models": {"data": [{"id": "m", "owned_by": "vllm"}]},
    "/version": {"version": "0.33.0"},
}
INFO = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'


def test_dialects_is_a_table_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["dialects"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "KNOWN", "BY", "G", "SHARES", "SALT", "RESET", "IDS", "NOT", "CLAIMED"]
    assert len(rows) == 17
    row = next(row for row in rows if row.startswith("llama-server"))
    assert "adopt/1, adopt/2, adopt/3, store/1" in row
    assert "slots" in row
    assert "bypass" in row


def test_one_dialect_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["dialects", "vllm"]) == 0
    out = capsys.readouterr().out
    assert "reports_cached: --enable-prompt-tokens-details" in out
    assert "granule: told by /metrics vllm:cache_config_info block_size" in out


def test_an_unknown_dialect_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["dialects", "nope"]) == 2
    assert "no dialect is called 'nope'; there are openai" in capsys.readouterr().err


def test_probe_prints_facts_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    behaviour = Behaviour(granule=16, cached="absent", pages={**VLLM, "/metrics": INFO})
    with fake_server(behaviour) as server:
        assert command.main(["probe", server.url]) == 0
    out = capsys.readouterr().out
    assert out.startswith("vLLM 0.33.0 · m · B 16 G 16 C ? pool 99")
    assert "not there: reports_cached; it takes --enable-prompt-tokens-details" in out


RESETS: dict[str, Any] = {**VLLM, "/metrics": INFO}


@pytest.mark.parametrize(
    ("allow", "resets"),
    [([], 0), (["--allow", "churn,disconnect"], 0), (["--allow", "reset,churn"], 1)],
)
def test_probe_resets_where_that_is_allowed(
    allow: list[str], resets: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Target] = []

    def reset(target: Target) -> dict[str, bool]:
        asked.append(target)
        return {"done": True}

    monkeypatch.setattr(Target, "reset", reset)
    with fake_server(Behaviour(granule=16, pages=RESETS)) as server:
        assert command.main(["probe", server.url, *allow]) == 0
    out = capsys.readouterr().out
    assert len(asked) == resets
    assert ("not tried: has_reset; it takes --allow reset" in out) is not bool(resets)


def test_probe_takes_the_margin_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(Behaviour(granule=16, pages=RESETS)) as server:
        assert command.main(["probe", server.url, "--json", "--margin", "0.001"]) == 0
    assert json.loads(capsys.readouterr().out)["margin"] == 0.001


def test_headers_may_be_listed_as_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "1")
    monkeypatch.setenv("TWO", "2")
    with fake_server(Behaviour(granule=16, pages=RESETS)) as server:
        command.main(["probe", server.url, "--header", "X-One=ONE, X-Two=TWO"])
        seen = server.state.headers[-1]
    assert (seen["X-One"], seen["X-Two"]) == ("1", "2")


@pytest.mark.parametrize("name", ["probe", "calibrate"])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--allow", "anything", "anything: expected some of churn, disconnect, reset"),
        ("--margin", "wide", "wide: expected a number above 0"),
        ("--chunk", "0", "0: expected a whole number from 1 on"),
    ],
)
def test_a_wrong_word_is_wrong_usage(
    name: str, option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main([name, "http://127.0.0.1:1", option, value])
    assert message in capsys.readouterr().err


def test_probe_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(Behaviour(granule=16, pages={**VLLM, "/metrics": INFO})) as server:
        assert command.main(["probe", server.url, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["dialect"], facts["granule"], facts["contradictions"]) == ("vllm", 16, [])


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (Behaviour(granule=32), "CONTRADICTION: granule 16 declared, but cached counts are multiples of 32"),
        (Behaviour(granule=16, replicas=2), "SEVERAL CACHES: of 8 heads of one stored prompt"),
    ],
)
def test_probe_fails_for_what_a_run_could_not_trust(
    behaviour: Behaviour, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.preflight._PATIENCE", 0.0)
    behaviour.pages = {**VLLM, "/metrics": INFO}
    with fake_server(behaviour) as server:
        assert command.main(["probe", server.url]) == 1
    assert said in capsys.readouterr().out


def test_calibrate_prints_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(Behaviour(granule=16, pages={**VLLM, "/metrics": INFO})) as server:
        assert command.main(["calibrate", server.url]) == 0
    out = capsys.readouterr().out
    assert "granule                    16" in out
    assert "salt isolates              yes" in out
    assert "reset empties the cache    not found out" in out


def test_calibrate_fails_where_the_declaration_is_contradicted(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(Behaviour(granule=32, pages={**VLLM, "/metrics": INFO})) as server:
        assert command.main(["calibrate", server.url, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["granule"] == 32
    assert found["contradictions"][0].startswith("granule 16 declared")


@pytest.mark.parametrize("name", ["probe", "calibrate"])
def test_no_server_is_said_in_a_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([name, f"http://127.0.0.1:{free_port()}"]) == 1
    assert "nothing answers at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--header", "X-Team"], "X-Team: expected HEADER=VARIABLE"),
        (["--cacert", "none.pem"], "none.pem: No such file"),
    ],
)
@pytest.mark.parametrize("name", ["probe", "calibrate"])
def test_wrong_access_is_wrong_usage(
    name: str, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([name, "http://127.0.0.1:1", *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "soon", "nan"])
def test_a_timeout_is_a_number_of_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["probe", "http://127.0.0.1:1", "--request-timeout", seconds])
    assert f"{seconds}: expected seconds above 0" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.parametrize("trust", [["--insecure"], ["--cacert", str(CERTIFICATE)]])
def test_a_server_behind_tls_can_be_probed(trust: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(Behaviour(cached="absent"), tls=True) as server:
        assert command.main(["probe", server.url, *trust]) == 0
    assert capsys.readouterr().out.startswith("OpenAI-compatible server")

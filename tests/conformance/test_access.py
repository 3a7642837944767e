"""Headers from the environment and certificates: what may be said, and messages that show no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.access import check_certificates, headers_of, shown


def test_a_header_is_what_its_variable_holds() -> None:
    pairs, held = ["X-Team=T", "X-Other=O"], {"T": "one", "O": " two words "}
    assert headers_of(pairs, held) == {"X-Team": "one", "X-Other": "two words"}


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("X-Team", "X-Team: expected HEADER=VARIABLE"),
        ("X-Team=my-token", "X-Team=my-token: expected HEADER=VARIABLE"),
        ("=T", "=T: expected HEADER=VARIABLE"),
        ("X Team=T", "X Team=T: expected HEADER=VARIABLE"),
        ("Content-Length=T", "Content-Length=T: the harness sets Content-Length itself"),
        ("X-Team=NONE", "X-Team=NONE: NONE is not set to one line of plain text"),
        ("X-Team=LINES", "X-Team=LINES: LINES is not set to one line of plain text"),
    ],
)
def test_a_wrong_header_is_refused_without_its_value(pair: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        headers_of([pair], {"T": "s3cret", "LINES": "s3cret\r\nX-Evil: 1"})
    assert "s3cret" not in str(refused.value)


def test_what_curl_is_told_names_variables_alone() -> None:
    held = {"T": "s3cret", "CONFORMANCE_API_KEY": "sk-1"}
    assert shown(["X-Team=T"], held) == (
        '-H "Authorization: Bearer $CONFORMANCE_API_KEY"',
        '-H "X-Team: $T"',
    )
    assert shown([], {}) == ()
    assert shown(["Authorization=T"], held) == ('-H "Authorization: $T"',)


def test_curl_trusts_whom_the_run_trusted() -> None:
    assert shown([], {}, verify=False) == ("-k",)
    assert shown([], {}, verify="my ca.pem") == ("--cacert", "'my ca.pem'")


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("words")
    with pytest.raises(ValueError, match=r"a\.pem: no certificates in PEM form"):
        check_certificates(str(tmp_path / "a.pem"))
    with pytest.raises(ValueError, match=r"none\.pem: No such file"):
        check_certificates(str(tmp_path / "none.pem"))

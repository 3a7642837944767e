"""What a guarded endpoint asks of its clients: headers, and certificates to trust.

Knows what the user may say about both. Does not know options or connections. A secret is only ever named by
its environment variable, and no message shows what one holds.
"""

from __future__ import annotations

import re
import shlex
import ssl
from collections.abc import Iterable, Mapping

KEY_VARIABLE = "CONFORMANCE_API_KEY"
KEY_HEADER = "Authorization"
_OURS = frozenset({"host", "content-type", "content-length", "connection", "transfer-encoding"})


def headers_of(pairs: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """`HEADER=VARIABLE` as headers with what the variables hold; ValueError says what is wrong with one."""
    return dict(_header(pair, environment) for pair in pairs)


def _header(pair: str, environment: Mapping[str, str]) -> tuple[str, str]:
    name, _, variable = pair.partition("=")
    if not re.fullmatch(r"[A-Za-z0-9-]+", name) or not re.fullmatch(r"[A-Za-z_]\w*", variable, re.ASCII):
        raise ValueError(f"{pair}: expected HEADER=VARIABLE, such as X-Team=TEAM_TOKEN")
    if name.lower() in _OURS:
        raise ValueError(f"{pair}: the harness sets {name} itself")
    value = environment.get(variable, "").strip()
    if not re.fullmatch(r"[\x20-\x7e]+", value):
        raise ValueError(f"{pair}: {variable} is not set to one line of plain text")
    return name, value


def shown(pairs: Iterable[str], environment: Mapping[str, str], verify: bool | str = True) -> tuple[str, ...]:
    """Options of curl for what a run sends besides its requests, each secret by its variable."""
    key = [(KEY_HEADER, f"Bearer ${KEY_VARIABLE}")] if environment.get(KEY_VARIABLE) else []
    named = [(name, f"${variable}") for name, _, variable in (pair.partition("=") for pair in pairs)]
    trust = (
        ["-k"] if verify is False else ["--cacert", shlex.quote(verify)] if isinstance(verify, str) else []
    )
    # The last header of a name is the one that a run sends.
    return (*(f'-H "{name}: {value}"' for name, value in dict([*key, *named]).items()), *trust)


def check_certificates(file: str) -> None:
    """ValueError when the file holds no certificates to trust."""
    try:
        ssl.create_default_context(cafile=file)
    except ssl.SSLError:
        raise ValueError(f"{file}: no certificates in PEM form") from None
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None

"""What a guarded endpoint asks of its clients: headers, and certificates to trust.

Knows what the user may say about both. Does not know options or connections. A secret is only ever named by
its environment variable, and no message shows what one holds.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping

_OURS = frozenset({"host", "content-type", "content-length", "connection", "transfer-encoding"})


def headers_of(pairs: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """`HEADER=VARIABLE` as headers with what the variables hold; ValueError says what is wrong with one."""
    return dict(_header(pair, environment) for pair in pairs)


def _header(pair: str, environment: Mapping[str, str]) -> tuple[str, str]:
    name, _, variable = pair.partition("=")
    if not re.fullmatch(r"[A-Za-z0-9-]+", name) or not variable:
        raise ValueError(f"{pair}: expected HEADER=VARIABLE, such as X-Team=TEAM_TOKEN")
    if name.lower() in _OURS:
        raise ValueError(f"{pair}: the harness sets {name} itself")
    value = environment.get(variable, "").strip()
    if not re.fullmatch(r"[\x20-\x7e]+", value):
        raise ValueError(f"{pair}: {variable} is not set to one line of plain text")
    return name, value


def check_certificates(file: str) -> None:
    """ValueError when the file holds no certificates to trust."""
    try:
        ssl.create_default_context(cafile=file)
    except ssl.SSLError:
        raise ValueError(f"{file}: no certificates in PEM form") from None
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None

"""The judges, by the word that a spec uses for them.

Knows the registry and which modules fill it. Does not know how any of them rules.
"""

from __future__ import annotations

from conformance.judges import (
    adopt,
    base,
    beside,
    chosen,
    count,
    evict,
    foot,
    foot_later,
    general,
    kept,
    key,
    ladder,
    ledger,
    life,
    out,
    pressure,
    reset,
    reuse,
    store,
    tmpl,
)
from conformance.judges.base import JUDGES, Judge, register

__all__ = [
    "JUDGES", "Judge", "adopt", "base", "beside", "chosen", "count", "evict", "foot", "foot_later", "general",
    "kept", "key", "ladder", "ledger", "life", "out", "pressure", "register", "reset", "reuse",
    "store", "tmpl",
]  # fmt: skip

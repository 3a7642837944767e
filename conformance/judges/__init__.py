"""The judges, by the word that a spec uses for them.

Knows the registry and which modules fill it. Does not know how any of them rules.
"""

from __future__ import annotations

from conformance.judges import adopt, base, count, foot, foot_later, key, life, out, store
from conformance.judges.base import JUDGES, Judge, register

__all__ = [
    "JUDGES",
    "Judge",
    "adopt",
    "base",
    "count",
    "foot",
    "foot_later",
    "key",
    "life",
    "out",
    "register",
    "store",
]

"""Named mutations of the engine, a module an area: each the override of one seam.

To be in this folder is all that makes a module's faults known. Knows the modules; does not know any fault.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from engine.faults.registry import FAULTS, Fault, fault, known, parts_for

for _found in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")

__all__ = ["FAULTS", "Fault", "fault", "known", "parts_for"]

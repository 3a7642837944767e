"""The shell commands of `python -m conformance`, one module each.

A command module has `add_parser(commands)`, which names its arguments and sets `run`, and `run(args)`, which
returns the exit status: 0 well, 1 something is wrong with what was looked at, 2 wrong usage. To be in this
folder is all that makes it a command. Knows the modules; does not know what any of them does.
"""

from __future__ import annotations

import pkgutil
from argparse import ArgumentParser, _SubParsersAction
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = _SubParsersAction[ArgumentParser]


def modules() -> list[ModuleType]:
    """Every command, in the order of its name."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))
    return [import_module(f"{__name__}.{name}") for name in names]

"""Where `pytest conformance/` finds the specs: the plugin puts the cases of `specs/` in this module's place.

Knows nothing itself. Without the plugin it fails instead of passing with no test.
"""

from __future__ import annotations


def test_the_plugin_is_installed() -> None:
    raise AssertionError("the conformance plugin is not loaded: pip install -e . in the project's folder")

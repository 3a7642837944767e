"""What every pytest run in this project needs: the plugin, and pytester for the project's own tests."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("prefix-cache-conformance"):
        raise pytest.UsageError("the conformance plugin is not installed: pip install -e . in this folder")

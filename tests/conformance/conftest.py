"""What every test of the harness shares."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def lean_inner_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner pytest runs do without a plugin of another tool: importing it takes longer than they do."""
    if "pytester" in request.fixturenames:
        request.getfixturevalue("pytester")
        monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis")


@pytest.fixture(autouse=True)
def no_build_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a build server pytest repeats whole reports in its summary; inner runs print the same everywhere."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)

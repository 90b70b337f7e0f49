"""Unit tests need no server, and must not see a settings file that lies about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with no outbox.toml in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def settings() -> MakeSettings:
    """Makes settings with one destination, `orders`, and no servers."""

    def make(**values: Any) -> Settings:
        return Settings(**{"destinations": {"orders": {"url": "redis+stream://localhost:6379/0/orders"}}, **values})

    return make

"""A pytest plugin: what a test published, and a relay in the test's own process, whose sends can be made to fail.

In a conftest.py: `pytest_plugins = ["outbox_tasks.testing"]`. Then a test takes the fixture `outbox`.
See docs/testing.md. (PYTEST_DONT_REWRITE: it makes its own messages, and a conftest may import it first.)
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox_tasks.settings import Settings
from outbox_tasks.settings.django_project import is_django
from outbox_tasks.testing.messages import SeenMessage, StoredTask
from outbox_tasks.testing.probe import OutboxProbe, Published

__all__ = ["OutboxProbe", "Published", "SeenMessage", "StoredTask"]


@pytest.fixture(scope="session")
def _outbox_database(request: pytest.FixtureRequest) -> None:
    """The database of the tests. pytest-django makes it."""
    if is_django() and request.config.pluginmanager.hasplugin("django"):
        request.getfixturevalue("django_db_setup")


@pytest.fixture(scope="session")
def outbox_settings(_outbox_database: None) -> Settings:
    """The settings of the outbox under test: those of the environment and outbox.toml. Override it, with any scope."""
    return Settings()


@pytest.fixture
def outbox(_outbox_database: None, outbox_settings: Settings) -> Iterator[OutboxProbe]:
    """The outbox of this test, with the messages that were written since it began."""
    with OutboxProbe(outbox_settings) as probe:
        yield probe

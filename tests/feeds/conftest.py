"""The fixtures of tests of the tables, and of tests at an outbox."""

from tests.integration.conftest import archived, command, command_settings, lease, outbox, page_settings, visit  # noqa: F401
from tests.storage.conftest import box, next_settings, tables  # noqa: F401

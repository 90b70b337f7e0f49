"""PgBouncer, where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.pgbouncer import PROGRAM, PgBouncer, version

__all__ = ["needed", "pooled", "prepares"]

needed = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")
prepares = pytest.mark.skipif(PROGRAM is None or version() < (1, 21), reason="there is no pgbouncer 1.21 or newer")


@contextmanager
def pooled(url: str, **options: object) -> Iterator[str]:
    """The URL of a pooler before the server of `url`."""
    with PgBouncer(url, **options) as pooler:
        yield pooler.url

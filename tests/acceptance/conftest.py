"""A relay of real processes for each module of tests, in a schema, a stream and a Redis database of its own.

A module says which processes by the fixture `celery_worker_cluster`, and may replace `values` and `destinations`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright
from pytest_celery import CeleryBrokerCluster, CeleryTestBroker
from sqlalchemy import Engine

from outbox_tasks import Outbox
from tests.acceptance.nodes import Relay
from tests.acceptance.publishers import SCHEME, distribution
from tests.conftest import Rows, Stream, eventually, make_tables, own_schema, own_stream


@pytest.fixture(scope="module")
def schema(engine: Engine) -> Iterator[str]:
    """A migrated database schema for the module."""
    with own_schema(engine) as name:
        make_tables(engine, name)
        yield name


@pytest.fixture(scope="module")
def rows(engine: Engine, schema: str) -> Rows:
    """The rows of the module's outbox."""
    return Rows(engine, schema)


@pytest.fixture(scope="module")
def stream(redis_url: str) -> Iterator[Stream]:
    """Where the destination `orders` delivers to."""
    with own_stream(redis_url) as made:
        yield made


@pytest.fixture(scope="module")
def destinations(stream: Stream) -> dict[str, Any]:
    """`orders`: the stream; `told`: the same stream, through a publisher that does as the payload says."""
    return {
        "orders": {"url": stream.url},
        "told": {"url": stream.url.replace("redis+stream", SCHEME), "max_attempts": 3},
    }


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    """Settings that differ from the usual ones."""
    return {}


@pytest.fixture(scope="module")
def relay(
    tmp_path_factory: pytest.TempPathFactory,
    postgres_url: str,
    schema: str,
    broker_url: str,
    destinations: dict[str, Any],
    values: dict[str, Any],
) -> Iterator[Relay]:
    """Starts the processes; they end with the module."""
    usual = {
        "database_url": postgres_url,
        "database_schema": schema,
        "broker_url": broker_url,
        "destinations": destinations,
        "claim_interval": 0.5,
    }
    plugins = distribution(tmp_path_factory.mktemp("plugins"))
    made = Relay(tmp_path_factory.mktemp("relay"), {**usual, **values}, plugins)
    yield made
    made.close()


@pytest.fixture(scope="module")
def outbox(relay: Relay) -> Outbox:
    """The application's outbox."""
    return Outbox(relay.settings)


@pytest.fixture(scope="module")
def celery_broker_cluster(broker_url: str) -> CeleryBrokerCluster:
    """The server that runs already: all that is asked of its container is the address."""
    container = SimpleNamespace(celeryconfig={"url": broker_url, "host_url": broker_url})
    return CeleryBrokerCluster(CeleryTestBroker(container))


@pytest.fixture(scope="module")
def celery_backend_cluster() -> None:
    """The relay has no results."""


def settled(rows: Rows, within: float = 60.0) -> None:
    """Wait until all messages are sent or dead."""
    eventually(lambda: not rows.pending(), within)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()

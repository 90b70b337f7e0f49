"""Problems of a Redis. Servers of the tests' own: what is set there concerns all who use them."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import redis

from lab.proxy import Proxy
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.operating.problems import Severity, examine
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows, seconds_from_now
from tests.integration.doctoring import NOBODY, found

OF_THE_BROKER = ("broker_away", "broker_unknown", "eviction", "memory_low")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey() as made:
        yield made


@pytest.fixture
def client(server: EmbeddedValkey) -> Iterator[redis.Redis]:
    """Puts everything back."""
    with redis.Redis.from_url(server.url) as made:
        yield made
        made.config_set("maxmemory", 0)
        made.config_set("maxmemory-policy", "noeviction")
        made.flushall()


@pytest.fixture
def there(settings: MakeSettings, server: EmbeddedValkey) -> Settings:
    return settings(broker_url=server.url)


def test_a_healthy_broker_has_no_problem(there: Settings, client: redis.Redis) -> None:
    assert found(there, *OF_THE_BROKER) == {}
    assert examine(there, deep=True).in_order["Broker"][0] == "it answers"


def test_an_unreachable_broker_is_the_root_of_all_that_stands_still(settings: MakeSettings, rows: Rows) -> None:
    rows.insert(1, locked_until=seconds_from_now(-600))
    seen = examine(settings(broker_url=NOBODY.replace("//", "//:secret@")))
    [away] = seen.problems
    assert away.code == "broker_away"
    assert {"no_workers", "no_beat", "no_claims", "stale"} <= {problem.code for problem in away.follows}
    assert "secret" not in str(seen)
    assert "Broker" in seen.skipped
    assert "Tables" in seen.in_order


def test_a_slow_broker(there: Settings) -> None:
    with Proxy(int(str(urlsplit(there.broker_url).port))) as proxy:
        slow = there.replace(broker_url=f"redis://{LOOPBACK}:{proxy.port}/0")
        assert found(slow, "broker_slow") == {}
        proxy.delay = 0.15  # each way
        assert "a round trip takes 0." in found(slow, "broker_slow")["broker_slow"].fact


def test_a_broker_that_is_not_configured(settings: MakeSettings) -> None:
    unknown = found(settings(broker_url=None), "broker_unknown")["broker_unknown"]
    assert unknown.severity is Severity.NOTE


def test_a_broker_that_evicts_or_is_nearly_full(
    server: EmbeddedValkey, settings: MakeSettings, client: redis.Redis
) -> None:
    """It is asked without CONFIG: managed servers forbid that."""
    client.acl_setuser(
        "managed", enabled=True, passwords=["+secret"], keys="*", channels="*", commands=["+@all", "-config"]
    )
    there = settings(broker_url=server.url.replace("//", "//managed:secret@"))

    def severity(code: str) -> Severity | None:
        seen = found(there, code, "check_failed")
        assert seen.keys() <= {code}
        return seen[code].severity if seen else None

    for policy, limit, expected in (
        ("allkeys-lru", "100mb", Severity.ERROR),
        ("volatile-lru", "100mb", Severity.WARNING),
        ("allkeys-lru", "0", Severity.NOTE),
        ("noeviction", "100mb", None),
    ):
        client.config_set("maxmemory", limit)
        client.config_set("maxmemory-policy", policy)
        assert severity("eviction") is expected
    for n in range(20):  # in one piece, much of the memory would be the connection's
        client.set(f"much {n}", "x" * 2**20)
    for share, expected in ((0.5, None), (0.88, Severity.WARNING), (0.97, Severity.ERROR)):
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] / share))
        assert severity("memory_low") is expected

"""Problems of a Redis. Servers of the tests' own: what is set there concerns all who use them."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery

from lab.proxy import Proxy
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.operating.problems import Severity, examine
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows, seconds_from_now
from tests.integration.doctoring import NOBODY, found

OF_THE_BROKER = ("broker_away", "broker_unknown", "redis_old", "eviction", "memory_low", "shared_broker")


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
    in_order = examine(there, deep=True).in_order["Broker"]
    assert in_order[0] == "it answers"
    assert "no other app is in its database" in in_order


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


@pytest.mark.parametrize(
    ("policy", "limit", "severity"),
    [
        ("allkeys-lru", "100mb", Severity.ERROR),
        ("volatile-lru", "100mb", Severity.WARNING),
        ("allkeys-lru", "0", Severity.NOTE),
        ("noeviction", "100mb", None),
    ],
)
def test_an_eviction_policy(
    there: Settings, client: redis.Redis, policy: str, limit: str, severity: Severity | None
) -> None:
    client.config_set("maxmemory", limit)
    client.config_set("maxmemory-policy", policy)
    seen = found(there, "eviction")
    assert (seen["eviction"].severity if seen else None) is severity


def test_a_server_that_forbids_config_is_checked_all_the_same(
    server: EmbeddedValkey, settings: MakeSettings, client: redis.Redis
) -> None:
    """As managed servers do."""
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.acl_setuser(
        "managed", enabled=True, passwords=["+secret"], keys="*", channels="*", commands=["+@all", "-config"]
    )
    url = server.url.replace("//", "//managed:secret@")
    with redis.Redis.from_url(url) as managed, pytest.raises(redis.exceptions.NoPermissionError):
        managed.config_get("maxmemory-policy")
    assert found(settings(broker_url=url), "eviction", "check_failed").keys() == {"eviction"}


@pytest.mark.parametrize(("share", "severity"), [(0.5, None), (0.88, Severity.WARNING), (0.97, Severity.ERROR)])
def test_a_broker_that_is_nearly_full(
    there: Settings, client: redis.Redis, share: float, severity: Severity | None
) -> None:
    client.set("much", "x" * 20 * 2**20)
    client.config_set("maxmemory", int(client.info("memory")["used_memory"] / share))
    seen = found(there, "memory_low")
    assert (seen["memory_low"].severity if seen else None) is severity


def test_another_app_with_queues_in_the_same_database(
    there: Settings, client: redis.Redis, server: EmbeddedValkey
) -> None:
    """No worker of it needs to run for that."""
    with Celery("shop", broker=server.url, set_as_current=False) as shop, shop.connection_for_write() as connection:
        shop.amqp.queues["celery"](connection.default_channel).declare()
    shared = found(there, "shared_broker")["shared_broker"]
    assert shared.severity is Severity.WARNING
    assert shared.fact == "Another Celery app has queues in the relay's Redis database: celery."
    elsewhere = there.replace(broker_url=server.url.replace("/0", "/1"))
    assert found(elsewhere, "shared_broker") == {}


def test_another_app_in_the_database_of_an_app_that_has_a_prefix(
    settings: MakeSettings, client: redis.Redis, server: EmbeddedValkey
) -> None:
    """Of two apps with a prefix each, neither sees the other's; of two with the same one, both do."""
    from outbox_tasks.celery import install

    mine = Celery("mine", broker=server.url, set_as_current=False)
    mine.conf.broker_transport_options = {"global_keyprefix": "mine:"}
    relay = install(mine, settings(broker_url=None))
    for prefix, seen in (("other:", False), ("mine:", True)):
        with Celery("shop", broker=server.url, set_as_current=False) as shop:
            shop.conf.task_default_queue = "shop"
            shop.conf.broker_transport_options = {"global_keyprefix": prefix}
            with shop.connection_for_write() as connection:
                shop.amqp.queues["shop"](connection.default_channel).declare()
        problems = examine(relay.settings, mine, only=["shared_broker"]).problems
        assert [problem.code for problem in problems] == ["shared_broker"] * seen
    mine.close()


def test_a_database_full_of_other_keys(there: Settings, client: redis.Redis) -> None:
    client.eval("for n = 1, 25000 do redis.call('SET', 'cache:' .. n, 1) end", 0)
    assert "The database holds 25,00" in found(there, "shared_broker")["shared_broker"].fact

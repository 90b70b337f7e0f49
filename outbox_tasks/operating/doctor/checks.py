"""All checks, and their order."""

from __future__ import annotations

from outbox_tasks.operating.doctor import (
    broker,
    database,
    destinations,
    feeds,
    messages,
    rights,
    supervised,
    tables,
    tasks,
    transactions,
    workers,
)
from outbox_tasks.operating.doctor.site import Check

DATABASE, TABLES, TRANSACTIONS = "Database", "Tables", "Transactions of others"
BROKER, WORKERS, MESSAGES, DESTINATIONS = "Broker", "Workers", "Messages", "Destinations"
TASKS, FEEDS = "Celery tasks", "Feeds"

SETTINGS, CHECK_FAILED = "settings", "check_failed"
"""Codes of findings that no check yields: the settings are refused; a check failed."""

OF_THE_DATABASE = (
    Check(
        DATABASE, database.reach,
        {SETTINGS, "database_away", "database_slow", "pooler_refuses_options", "database_read_only",
         "database_encoding"}, gives=("server",),
    ),
    Check(DATABASE, database.pooler, {"pooler_prepared"}, needs=("server",)),
    Check(DATABASE, database.session, {"session_settings"}, needs=("server",)),
    Check(DATABASE, database.clock, {"clock_skew"}, needs=("server",)),
    Check(
        TABLES, tables.version, {"schema_missing", "schema_mismatch"}, needs=("server",), gives=("tables",)
    ),
    Check(DATABASE, database.timeline, {"timeline_changed"}, needs=("tables",)),
    Check(TABLES, rights.lacking, {"rights_missing"}, needs=("server",)),
    Check(TABLES, rights.hidden, {"rows_hidden"}, needs=("server",)),
    Check(TABLES, rights.surplus, {"rights_surplus"}, needs=("tables",)),
    Check(TABLES, tables.days, {"sequence_behind", "many_days"}, needs=("tables",)),
    Check(TABLES, tables.indexes, {"index_missing", "index_invalid"}, needs=("tables",), gives=("indexes",)),
    Check(TABLES, tables.vacuuming, {"autovacuum_off", "dead_rows", "table_options"}, needs=("tables",)),
    Check(
        TRANSACTIONS, transactions.open_for_long,
        {"xmin_held", "writer_open", "idle_in_transaction", "sessions_hidden"}, needs=("tables",),
    ),
    Check(TRANSACTIONS, transactions.strangers, {"lock_of_a_stranger"}, needs=("tables",)),
    Check(TRANSACTIONS, transactions.prepared, {"prepared_transaction"}, needs=("tables",)),
    Check(TRANSACTIONS, transactions.slots, {"slot_holds_rows"}, needs=("server",)),
)  # fmt: skip

OF_THE_BROKER = (
    Check(BROKER, broker.reach, {"broker_away", "broker_unknown"}, gives=("broker", "redis")),
    Check(BROKER, broker.redis, {"redis_old", "eviction", "memory_low"}, needs=("redis",)),
    Check(BROKER, broker.clock, {"clock_skew"}, needs=("redis",)),
    Check(
        WORKERS, workers.settings, {"visibility_short", "lease_short", "same_name", "wrong_worker"}, needs=("broker",)
    ),
    Check(BROKER, workers.others, {"shared_broker"}, needs=("redis",)),
)

OF_THE_DESTINATIONS = (
    Check(
        DESTINATIONS, destinations.publishers, {"no_destinations", "publisher_missing", "destination_url"}
    ),
    Check(
        DESTINATIONS, destinations.reachable,
        {"destination_away", "destination_partly", "destination_certificate", "destination_unchecked"},
    ),
)  # fmt: skip

AT_ONCE = (OF_THE_DATABASE, OF_THE_BROKER, OF_THE_DESTINATIONS)
"""These groups run at the same time, so that one without an answer does not hold up the others."""

AFTERWARDS = (
    Check(DATABASE, database.settings, {"two_places"}),
    Check(BROKER, broker.stamped, {"crossed_wires"}, needs=("server", "broker")),
    Check(WORKERS, workers.served, {"no_workers", "no_heartbeat", "same_name"}, uses=("tables", "broker")),
    Check(WORKERS, workers.clocks, {"clock_skew"}, needs=("tables",)),
    Check(
        MESSAGES, messages.periodic_tasks, {"no_beat", "claims_late", "no_claims", "no_maintenance"}, needs=("tables",)
    ),
    Check(MESSAGES, messages.waiting, {"stale", "destination_unknown", "silent"}, needs=("tables", "indexes")),
    Check(MESSAGES, messages.dead_letters, {"dead_letters"}, needs=("tables", "indexes")),
    Check(MESSAGES, messages.keys, {"keys_blocked"}, needs=("tables", "indexes")),
    Check(MESSAGES, messages.pauses, {"paused", "breaker_open", "destination_refuses"}, needs=("tables",)),
    Check(MESSAGES, messages.queue, {"queue_stuck", "queue_slow"}, needs=("tables", "broker")),
    Check(FEEDS, feeds.sources, {"feed_list", "feed_away"}, needs=("tables",)),
    Check(FEEDS, feeds.copied, {"feed_late"}, needs=("tables",)),
    Check(TASKS, tasks.stored, {"always_eager"}),
    Check(TASKS, tasks.known, {"task_unknown"}, needs=("tables",), uses=("broker",)),
    Check(TASKS, supervised.brokers, {"tasks_with_the_relay"}),
    Check(TASKS, supervised.waiting, {"tasks_unsupervised", "tasks_wait"}, needs=("tables", "indexes")),
)
"""These need the answers of several groups."""

CHECKS = (*OF_THE_DATABASE, *OF_THE_BROKER, *OF_THE_DESTINATIONS, *AFTERWARDS)

SUBJECTS = (DATABASE, TABLES, TRANSACTIONS, BROKER, WORKERS, MESSAGES, TASKS, FEEDS, DESTINATIONS)
"""In the order in which people read them."""

CODES = frozenset({CHECK_FAILED, SETTINGS}.union(*(check.codes for check in CHECKS)))
"""Of all findings."""

"""All checks, and their order: what is nearer to the ground comes first."""

from __future__ import annotations

from outbox_tasks.operating.problems import (
    broker,
    database,
    destinations,
    sends,
    tables,
    transactions,
    waiting,
    workers,
)
from outbox_tasks.operating.problems.site import Check
from outbox_tasks.satellites import satellites

DATABASE, TABLES, TRANSACTIONS = "Database", "Tables", "Transactions of others"
BROKER, WORKERS, MESSAGES, DESTINATIONS = "Broker", "Workers", "Messages", "Destinations"

SETTINGS, CHECK_FAILED, WORKER_LOST = "settings", "check_failed", "worker_lost"
"""Codes of problems that no check yields: the settings are refused, a check failed, or the worker that `health` asks
for is gone."""

CHECKS = (
    Check(
        DATABASE, "it answers and takes writes", database.reach,
        {SETTINGS, "database_away", "database_slow", "pooler_refuses_options", "database_read_only"},
        gives=("server", "writes"),
    ),
    Check(TABLES, "they have the version of this release", tables.version, {"schema_missing", "schema_mismatch"},
          needs=("server",), gives=("tables",)),
    Check(DATABASE, "a write succeeds", database.writes, {"database_refuses_writes"}, needs=("tables", "writes")),
    Check(TABLES, "our role has all rights that it needs", tables.lacking, {"rights_missing"}, needs=("server",)),
    Check(TABLES, "no row-level security hides rows", tables.hidden, {"rows_hidden"}, needs=("server",)),
    Check(DATABASE, "our connections have their settings", database.session, {"session_settings"}, needs=("server",),
          deep=True),
    Check(DATABASE, "it is on its timeline", database.timeline, {"timeline_changed"}, needs=("tables",)),
    Check(DATABASE, "no two settings name two places", database.settings, {"two_places"}, deep=True),
    Check(TABLES, "numbers are given out in order", tables.days, {"sequence_behind"}, needs=("tables",)),
    Check(TABLES, "all indexes are there, and valid", tables.indexes, {"index_missing", "index_invalid"},
          needs=("tables",), gives=("indexes",)),
    Check(TABLES, "autovacuum keeps them small", tables.vacuuming, {"autovacuum_off", "dead_rows"},
          needs=("tables",), deep=True),
    Check(TRANSACTIONS, "none is open for long", transactions.open_for_long,
          {"xmin_held", "writer_open"}, needs=("tables",)),
    Check(TRANSACTIONS, "no stranger holds a lock of ours", transactions.strangers, {"lock_of_a_stranger"},
          needs=("tables",)),
    Check(TRANSACTIONS, "none is left prepared", transactions.prepared, {"prepared_transaction"}, needs=("tables",),
          deep=True),
    Check(BROKER, "it answers", broker.reach, {"broker_away", "broker_unknown", "broker_slow"},
          gives=("broker", "redis")),
    Check(BROKER, "it belongs to this outbox", broker.crossed, {"crossed_wires"}, uses=("tables", "broker")),
    Check(BROKER, "it evicts nothing, and has memory left", broker.redis, {"eviction", "memory_low"},
          needs=("redis",)),
    Check(WORKERS, "each queue is served", workers.served, {"no_workers", "same_name"}, needs=("tables",)),
    Check(WORKERS, "each writes heartbeats here", workers.unheard, {"no_heartbeat"}, needs=("tables", "broker"),
          deep=True),
    Check(WORKERS, "their settings fit together", workers.settings,
          {"visibility_short", "same_name", "wrong_worker"}, needs=("broker",), deep=True),
    Check(WORKERS, "beat ticks", workers.beat, {"no_beat"}, needs=("tables",)),
    Check(WORKERS, "claims run", workers.claims, {"claims_late", "no_claims"}, needs=("tables",)),
    Check(WORKERS, "maintenance is done", workers.maintenance, {"no_maintenance"}, needs=("tables",)),
    Check(DESTINATIONS, "each has a publisher", destinations.publishers,
          {"no_destinations", "publisher_missing", "destination_url"}, deep=True),
    Check(DESTINATIONS, "the hosts that their URLs name can be reached from here", destinations.reachable,
          {"destination_away"}, deep=True),
    Check(DESTINATIONS, "their passwords can be had here", destinations.passwords, {"password_unavailable"}, deep=True),
    Check(MESSAGES, "they are counted in time", waiting.counted, set(), needs=("tables", "indexes"),
          gives=("counts",)),
    Check(DESTINATIONS, "their messages arrive", sends.sends,
          {"paused", "breaker_open", "destination_refuses", "destination_failing", "destination_waits"},
          needs=("counts",)),
    Check(DESTINATIONS, "nobody has limited one", sends.limits, {"limited", "limit_set"}, needs=("counts",)),
    Check(MESSAGES, "all destinations are known", waiting.unknown, {"destination_unknown"},
          needs=("counts",)),
    Check(MESSAGES, "no dead letters wait", waiting.dead_letters, {"dead_letters"}, needs=("counts",)),
    Check(MESSAGES, "no key is held up", waiting.keys, {"keys_blocked"}, needs=("counts",)),
    Check(MESSAGES, "queued singles are sent", waiting.queue, {"queue_stuck", "queue_slow"},
          needs=("counts", "broker")),
    Check(MESSAGES, "what is claimed is sent", waiting.silent, {"silent"}, needs=("counts",)),
    Check(MESSAGES, "nothing has been due for long", waiting.stale, {"stale"}, needs=("counts",)),
    *(check for each in satellites().values() for check in each.checks()),
)  # fmt: skip

CODES = frozenset({CHECK_FAILED, SETTINGS, WORKER_LOST}.union(*(check.codes for check in CHECKS)))
"""Of all problems."""

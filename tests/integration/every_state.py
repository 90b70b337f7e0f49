"""Messages, destinations and workers in each state, with and without all that they may lack."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from sqlalchemy import func

from tests.conftest import Rows, seconds_from_now

FAILED = {"attempts": 2, "last_error_code": "http_503", "last_error": "the shop is shut"}
TAKEN = {"lease": uuid4, "locked_until": seconds_from_now(600)}
OVER = {"lease": uuid4, "locked_until": seconds_from_now(-5)}
HANDED = {"handed_at": func.clock_timestamp(), "attempts": 1, "lease": uuid4}

STATES: dict[str, dict[str, Any]] = {
    "ready": {},
    "ready again": FAILED,
    "scheduled": {"locked_until": seconds_from_now(600)},
    "waiting for a retry": {**FAILED, "locked_until": seconds_from_now(600)},
    "out of reach": {**FAILED, "outages": 3, "locked_until": seconds_from_now(600)},
    "leased": TAKEN,
    "leased, run out": OVER,
    "begun": {**TAKEN, "begun": True},
    "begun again": {**TAKEN, **FAILED, "begun": True},
    "begun, run out": {**OVER, "begun": True},
    "handed over": {**HANDED, "locked_until": seconds_from_now(600)},
    "handed over, run out": {**HANDED, "locked_until": seconds_from_now(-5)},
    "running": {**HANDED, "locked_until": seconds_from_now(600), "begun": True},
    "running, run out": {**HANDED, "locked_until": seconds_from_now(-5), "begun": True},
    "dead": {**FAILED, "status": "dead"},
    "dead at once": {"status": "dead"},
    "sent": {},
    "sent after a failure": FAILED,
    "discarded": {},
}

NOTE = {"at": "2026-11-01T12:00:00+00:00"}
PRESENT: dict[str, Any] = {
    "key": "order:42",
    "aggregate_type": "celery.task",
    "aggregate_id": "42",
    "priority": 1,
    "latest": True,
    "deliver_at": seconds_from_now(-9),
    "locked_by": "worker1@host:77",
    "headers": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tenant": "a"},
    "history": [
        {**NOTE, "what": "failed", "attempt": 1, "code": "x", "error": "no", "traceback": "ValueError: no"},
        {**NOTE, "what": "redriven", "by": "anna", "why": "mended", "attempts": 1, "entry": 1},
    ],
}
"""All that a message may lack."""

SAYS = {"absent": {}, "present": PRESENT}


def write(rows: Rows, state: str, more: dict[str, Any]) -> str:
    """A message in this state. Returns its id."""
    columns = {**more, **STATES[state]}
    [id] = rows.insert(**{name: value() if value is uuid4 else value for name, value in columns.items()})
    if state.startswith(("sent", "discarded")):
        rows.settle(id, state.split()[0])
    return id


DESTINATIONS = """
INSERT INTO outbox_destinations (name) VALUES ('bare');
INSERT INTO outbox_destinations (name, failures, failed_at, error_code, error)
VALUES ('failed', 1, now(), 'http_503', 'shut'), ('odd', 1, now(), NULL, NULL);
INSERT INTO outbox_destinations (name, failures, failed_at, opened_at, pause_until, error_code, error)
VALUES ('open', 3, now(), now(), now() + interval '1 hour', 'http_503', 'shut'),
       ('trying', 3, now(), now(), now(), NULL, NULL);
INSERT INTO outbox_destinations (name, paused_at, paused_by, paused_why)
VALUES ('paused', now(), 'anna', 'because'), ('silent', now(), NULL, NULL);
INSERT INTO outbox_heartbeats (name, kind, facts) VALUES ('w1', 'worker', '{}'), ('claim', 'claim', '{}'),
  ('w2', 'worker', '{"queues": ["outbox.publish"], "pool": "solo", "concurrency": 1, "version": "1", "started": 1}'),
  ('w3', 'supervising', '{}')"""

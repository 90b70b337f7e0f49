"""Messages, destinations and workers in each state, with and without all that they may lack, can be shown: on every
page, and by the commands."""

from __future__ import annotations

import json
import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

from sqlalchemy import text

from outbox_tasks.web import Role
from tests.conftest import Rows
from tests.every_state import SAYS, STATES, write
from tests.integration.browsing import Browser, Visit
from tests.integration.conftest import Command

URLS = {"web_flower_url": "https://f.example.com", "web_trace_url": "https://t.example.com/{trace_id}"}


def says(command: Command, *words: str) -> str:
    answer = command(*words)
    assert isinstance(answer.exception, SystemExit | None), (words, answer.exc_info)
    assert answer.exit_code in (0, 1), (words, answer.output)
    return answer.stdout


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


def test_every_page_is_shown(visit: Visit, rows: Rows, command: Command, schema: str) -> None:
    """From the start page on, over an outbox that has all of it."""
    ids = [write(rows, state, more) for state in STATES for more in SAYS.values()]
    with rows.engine.begin() as connection:
        connection.execute(text(f"SET LOCAL search_path = {schema}"))
        for statement in DESTINATIONS.split(";\n"):
            connection.exec_driver_sql(statement)
    for browser in (visit(Role.LOOK), visit(**URLS)):
        assert {f"/messages/{id}" for id in ids} <= walk(browser)
    for words in ("list", "list --by key", "list --by error", "status", "audit"):
        says(command, *words.split())
        json.loads(says(command, *words.split(), "--json"))


def walk(browser: Browser) -> set[str]:
    """All pages that links lead to."""
    left, seen = ["/"], set[str]()
    while left:
        if (link := left.pop(0)) in seen:
            continue
        seen.add(link)
        place = urlsplit(link)
        answer = browser.ask("GET", place.path, parse_qs(place.query))
        assert answer.status_code == 200, (link, answer.text)
        if len(seen) < 300:
            left += [
                unescape(one) for one in re.findall(rb'href="(/[^"#]*)"', answer.content) for one in [one.decode()]
            ]
    return seen

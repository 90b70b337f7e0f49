"""The SQL that the statements become, kept as text so that a reader sees it and a change shows in a diff.

`python -m tests.golden` writes the files anew.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.sql import ClauseElement, Executable
from sqlalchemy.sql.compiler import SQLCompiler

from outbox_tasks import audit, breaker, counts, leasing, order, signs, slots, sql, statements
from outbox_tasks.alerts import statements as telling
from outbox_tasks.archive import statements as archive
from outbox_tasks.doctor import statements as doctor
from outbox_tasks.mend import search
from outbox_tasks.mend import statements as mending
from outbox_tasks.schema import tables

DIRECTORY = Path(__file__).parent
DIALECT = make_url("postgresql+psycopg://").get_dialect()()
_CLAUSES = {
    "DELETE", "FOR", "FROM", "INSERT", "JOIN", "LIMIT", "ORDER", "RETURNING", "SELECT", "SET", "UNION", "UPDATE",
    "USING", "VALUES", "WHERE",
}  # fmt: skip
_TOKEN = re.compile(r"\s+|'(?:[^']|'')*'|%\(\w+\)s|[\w.]+|::|.", re.DOTALL)


def current() -> dict[str, str]:
    """The text of every statement, by the name of its file."""
    t = tables()
    past = archive.partition(t, "outbox_archive_20261120")
    made: dict[str, Executable] = {
        "publish": statements.publish(t),
        "publish_once": statements.publish_once("some_schema"),
        "cancel": statements.cancel("some_schema"),
        "claim": leasing.claim(t),
        "horizon": order.horizon(t),
        "claim_keys": order.claim_keys(t),
        "blocked_keys": order.blocked_keys(t),
        "count_blocked_keys": order.count_blocked_keys(t),
        "bury_unroutable": leasing.bury_unroutable(t),
        "begin": statements.begin(t),
        "settle_done": statements.settle_done(t, archive=True),
        "recall": leasing.recall(t),
        "sent_in_vain": statements.sent_in_vain(t, archive=True),
        "settle_done_delete": statements.settle_done(t, archive=False),
        "settle_failed": statements.settle_failed(t),
        "release": statements.release(t),
        "admit": breaker.admit(t),
        "seen": slots.seen(t),
        "left": slots.left(t),
        "publishers": slots.publishers(t),
        "forget_publishers": slots.forget_publishers(t),
        "make_slots": slots.make_slots(t),
        "crowded": slots.crowded(t),
        "holders": slots.holders(t),
        "vacated": slots.vacated(t),
        "make_meters": slots.make_meters(t),
        "metered": slots.metered(t),
        "unspent": slots.unspent(t),
        "untried": breaker.untried(t),
        "tripped": breaker.tripped(t),
        "recovered": breaker.recovered(t),
        "give_back": breaker.give_back(t),
        "pause": breaker.pause(t),
        "resume": breaker.resume(t),
        "states": breaker.states(t),
        "mark": statements.mark(t),
        "forget": statements.forget(t),
        "record_alerts": telling.record_alerts(t),
        "end_alerts": telling.end_alerts(t),
        "take_posts": telling.take_posts(t),
        "posted": telling.posted(t),
        "put_off": telling.put_off(t),
        "turn_to_look": telling.turn_to_look(t),
        "known_alerts": telling.known_alerts(t),
        "forget_alerts": telling.forget_alerts(t),
        "counts": counts.counts(t),
        "heads": counts.heads(t),
        "present": counts.present(t),
        "pages": counts.pages(t),
        "sample": counts.sample(t),
        "archived": counts.archived(t),
        "tally": signs.tally(t),
        "tallied": signs.tallied(t),
        "beat": signs.beat(t),
        "heartbeats": signs.heartbeats(t),
        "stopped": signs.stopped(t),
        "doctor_server": doctor.server(),
        "doctor_clock": doctor.clock(),
        "doctor_backend": doctor.backend(),
        "doctor_options": doctor.options(),
        "doctor_upgraded": doctor.upgraded(t),
        "doctor_rights": doctor.rights(t),
        "doctor_indexes": doctor.indexes(t),
        "doctor_triggers": doctor.triggers(t),
        "doctor_strays": doctor.strays(t),
        "doctor_vacuuming": doctor.vacuuming(t),
        "doctor_transactions": doctor.transactions(t),
        "doctor_prepared": doctor.prepared(t),
        "doctor_slots": doctor.slots(),
        "doctor_hidden": doctor.hidden(),
        "version": statements.version(t),
        "prepare_archive": statements.prepare_archive("some_schema", 7),
        "archive_partitions": archive.partitions(t),
        "archive_days": archive.days(past),
        "archive_lots": archive.lots(past),
        "archive_rows": archive.rows(past),
        "archive_measured": archive.measured(past),
        "archive_remove": archive.remove(past),
        "archive_move": archive.move(t, past),
        "archive_make_day": archive.make_day("some_schema", datetime(2026, 11, 20, tzinfo=UTC)),
        "archive_renew_default": archive.renew_default("some_schema"),
        "archive_detach": archive.detach("some_schema", "outbox_archive_20261120"),
        "archive_await_settles": archive.await_settles("some_schema"),
        "forget_counts": archive.forget_counts(t),
        "forget_workers": archive.forget_workers(t),
        "forget_acts": archive.forget_acts(t),
        "alone": sql.alone("some_schema", "maintain"),
        "idle": sql.idle(),
        "unhurried": sql.unhurried(),
        "newest": search.newest(t),
        "newest_archived": search.newest_archived(t),
        "waiting": search.waiting(t),
        "of_key": search.of_key(t),
        "dead_of_destinations": search.dead_of_destinations(t),
        "dead_of_group": search.dead_of_group(t),
        "groups": search.groups(t),
        "everything": search.everything(t),
        "ahead": search.ahead(t),
        "states_of": search.states(t),
        "places_of_dead": mending.places_of_dead(t),
        "next_dead": mending.next_dead(t, "destination"),
        "next_dead_of_group": mending.next_dead(t, "group"),
        "next_dead_counted": mending.next_dead(t, "group", counted=True),
        "next_waiting": mending.next_waiting(t),
        "redrive": mending.redrive(t),
        "discard": mending.discard(t, archive=True),
        "discard_delete": mending.discard(t, archive=False),
        "edit": mending.edit(t),
        "audit_opened": audit.opened(t),
        "audit_closed": audit.closed(t),
        "audit_entries": audit.entries(t),
        "audit_about": audit.about(t),
        "audit_former": audit.former(t),
    }
    return {name: rendered(statement) for name, statement in made.items()}


def kept(name: str) -> str:
    """The text in the file of this name."""
    return (DIRECTORY / f"{name}.sql").read_text(encoding="utf-8")


def rendered(statement: Executable) -> str:
    """A statement as PostgreSQL gets it, laid out, with the values of its own under it."""
    assert isinstance(statement, ClauseElement)
    compiled = statement.compile(dialect=DIALECT)
    assert isinstance(compiled, SQLCompiler)
    fixed = {name: bind.value for bind, name in compiled.bind_names.items() if not bind.required}
    lines = [f"-- {name} = {value!r}" for name, value in sorted(fixed.items()) if value is not None]
    return "\n".join([_laid_out(str(compiled)) + ";", *lines]) + "\n"


def _laid_out(sql: str) -> str:
    """A clause, a condition, a WHEN or an assignment a line; subqueries indented."""
    tokens: list[str] = _TOKEN.findall(sql)
    lines, line, clause = [], "", ""
    subqueries: list[bool] = []  # for each open parenthesis: is it around a subquery?

    def end_line(extra: int = 0) -> None:
        nonlocal line
        lines.append(line.rstrip())
        line = "  " * (sum(subqueries) + extra)

    for n, token in enumerate(tokens):
        in_query = all(subqueries[-1:])
        if token == "(":
            line += token
            subqueries.append(tokens[n + 1] in ("SELECT", "DELETE") and "FROM" in _inside(tokens[n + 1 :]))
            if subqueries[-1]:
                end_line()
        elif token == ")":
            if subqueries.pop():
                end_line()
            line += token
        elif in_query and token in _CLAUSES and tokens[n - 2] not in ("DELETE", "FOR", "UNION ALL"):
            end_line()
            line += token
            clause = token
        elif in_query and token in ("AND", "WHEN", "ELSE"):
            end_line(2 if token != "AND" else 1)
            line += token
        elif not token.isspace():
            line += token
        elif line.strip():
            line += " "
        if token == "," and in_query and clause == "SET":
            end_line(1)
    end_line()
    return "\n".join(line for line in lines if line)


def _inside(tokens: list[str]) -> list[str]:
    """The tokens up to the parenthesis that closes."""
    depth = 0
    for n, token in enumerate(tokens):
        depth += (token == "(") - (token == ")")
        if depth < 0:
            return tokens[:n]
    return tokens

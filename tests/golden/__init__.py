"""The SQL that the statements become, kept as text so that a reader sees it and a change shows in a diff.

`python -m tests.golden` writes the files anew.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import DateTime, cast, literal, make_url
from sqlalchemy.sql import ClauseElement, Executable
from sqlalchemy.sql.compiler import SQLCompiler

from outbox_tasks.database import (
    activity,
    begin,
    breaker,
    claim,
    claim_keys,
    due,
    held_keys,
    inbox,
    lost_tasks,
    pieces,
    runs,
    schema,
    settle,
    slots,
    write,
)
from outbox_tasks.database.schema import tables
from outbox_tasks.operating import audit, counts, pauses
from outbox_tasks.operating.archive import replay_statements
from outbox_tasks.operating.archive import statements as archive
from outbox_tasks.operating.doctor import statements as doctor
from outbox_tasks.operating.messages import act_statements, find_statements, paging_statements
from outbox_tasks.operating.messages import background_statements as background
from outbox_tasks.telemetry.alerts import statements as telling

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
        "publish": write.publish(t),
        "publish_one": write.publish_one(t, ["id", "event_type", "destination", "content_type", "payload"]),
        "publish_one_full": write.publish_one(
            t, [name for name in [*write.ROW, "payload"] if name not in ("text", "data", "deliver_at")]
        ),
        "publish_once": write.publish_once("some_schema"),
        "cancel": write.cancel("some_schema"),
        "anything_due": due.anything_due(t),
        "next_due": due.next_due(t),
        "claim": claim.claim(t),
        "horizon": claim_keys.horizon(t),
        "claim_keys": claim_keys.claim_keys(t),
        "blocked_keys": held_keys.blocked_keys(t),
        "count_blocked_keys": held_keys.count_blocked_keys(t),
        "bury_unroutable": claim.bury_unroutable(t),
        "begin": begin.begin(t, alike=True),
        "begin_mixed": begin.begin(t, alike=False),
        "settle_done": settle.settle_done(t, archive=True, alike=True),
        "settle_done_mixed": settle.settle_done(t, archive=True, alike=False),
        "recall": claim.recall(t),
        "note_timeline": claim.note_timeline(t),
        "sent_in_vain": settle.sent_in_vain(t, archive=True),
        "settle_done_delete": settle.settle_done(t, archive=False, alike=True),
        "settle_handed": settle.settle_handed(t),
        "begin_run": runs.begin_run(t),
        "renew_runs": runs.renew_runs(t),
        "lose_runs": runs.lose_runs(t),
        "end_run": runs.end_run(t, archive=True),
        "end_run_delete": runs.end_run(t, archive=False),
        "completed": runs.completed(t),
        "end_run_later": runs.end_run(t, archive=True, soon=False),
        "fail_run": runs.fail_run(t),
        "retry_run": runs.retry_run(t),
        "requeue_run": runs.requeue_run(t),
        "unknown_run": runs.unknown_run(t),
        "overtaken": lost_tasks.overtaken(t),
        "handed_over": lost_tasks.handed_over(t),
        "handed_over_by_task": lost_tasks.by_task(t),
        "end_waits": lost_tasks.end_waits(t),
        "wait_on": lost_tasks.wait_on(t),
        "whereabouts": runs.whereabouts(t),
        "identity": runs.identity("some_schema"),
        "settle_failed": settle.settle_failed(t),
        "release": begin.release(t),
        "size_of": begin.size_of(t),
        "admit": breaker.admit(t),
        "seen": slots.seen(t),
        "left": slots.left(t),
        "publishers": slots.publishers(t),
        "forget_publishers": slots.forget_publishers(t),
        "make_slots": slots.make_slots(t),
        "crowded": slots.crowded(t),
        "held": slots.held(t, of_one=False),
        "held_of_one": slots.held(t, of_one=True),
        "holders": slots.holders(t),
        "neighbours": slots.neighbours(t),
        "vacated": slots.vacated(t),
        "make_meters": slots.make_meters(t),
        "metered": slots.metered(t),
        "unspent": slots.unspent(t),
        "untried": breaker.untried(t),
        "tripped": breaker.tripped(t),
        "recovered": breaker.recovered(t),
        "give_back": begin.give_back(t),
        "pause": pauses.paused(t),
        "resume": pauses.resumed(t),
        "states": breaker.states(t),
        "mark": inbox.mark(t),
        "forget": inbox.forget(t),
        "record_alerts": telling.record_alerts(t),
        "end_alerts": telling.end_alerts(t),
        "take_posts": telling.take_posts(t),
        "posted": telling.posted(t),
        "put_off": telling.put_off(t),
        "turn_to_look": telling.turn_to_look(t),
        "failed_runs": telling.failed_runs(t),
        "looked": telling.looked(t),
        "known_alerts": telling.known_alerts(t),
        "forget_alerts": telling.forget_alerts(t),
        "counts": counts.counts(t),
        "heads": counts.heads(t),
        "present": counts.present(t),
        "pages": counts.pages(t),
        "sample": counts.sample(t),
        "archived": counts.archived(t),
        "tally": activity.tally(t),
        "tallied": activity.tallied(t),
        "course": activity.course(t, of_one=False),
        "course_of_one": activity.course(t, of_one=True),
        "beat": activity.beat(t),
        "on_timeline": activity.on_timeline(t),
        "heartbeats": activity.heartbeats(t),
        "stopped": activity.stopped(t),
        "doctor_server": doctor.server(),
        "doctor_clock": doctor.clock(),
        "doctor_backend": doctor.backend(),
        "doctor_options": doctor.options(),
        "doctor_upgraded": doctor.upgraded(t),
        "doctor_rights": doctor.rights(t),
        "doctor_uncallable": doctor.uncallable(t),
        "doctor_indexes": doctor.indexes(t),
        "doctor_triggers": doctor.triggers(t),
        "doctor_strays": doctor.strays(t),
        "doctor_vacuuming": doctor.vacuuming(t),
        "doctor_transactions": doctor.transactions(t),
        "doctor_prepared": doctor.prepared(t),
        "doctor_slots": doctor.slots(),
        "doctor_hidden": doctor.hidden(),
        "doctor_oldest_snapshot": doctor.oldest_snapshot(),
        "version": schema.version(t),
        "prepare_archive": archive.call("some_schema", "prepare", 7),
        "archive_partitions": archive.partitions(t),
        "archive_days": archive.days(past),
        "archive_lots": archive.lots(past),
        "archive_rows": archive.rows(past),
        "archive_measured": archive.measured(past),
        "archive_remove": archive.remove(past),
        "archive_move": archive.move(t, past),
        "archive_make_day": archive.call(
            "some_schema", "make_day", cast(literal(datetime(2026, 11, 20, tzinfo=UTC)), DateTime(True))
        ),
        "archive_renew_default": archive.call("some_schema", "renew_default"),
        "archive_detach": archive.call("some_schema", "detach", "outbox_archive_20261120"),
        "archive_drop": archive.call("some_schema", "drop", "outbox_archive_gone_20261120"),
        "archive_share": archive.call("some_schema", "share"),
        "archive_await_settles": archive.call("some_schema", "await_settles"),
        "forget_counts": archive.forget(t.tallies, t.tallies.c.minute),
        "forget_workers": archive.forget(t.heartbeats, t.heartbeats.c.seen_at, t.heartbeats.c.kind == "worker"),
        "forget_acts": archive.forget(t.audit, t.audit.c.at),
        "alone": pieces.alone("some_schema", "maintain"),
        "idle": pieces.idle(),
        "unhurried": pieces.unhurried(),
        "newest": find_statements.newest(t),
        "newest_archived": find_statements.newest_archived(t),
        "waiting": find_statements.waiting(t),
        "of_key": find_statements.of_key(t),
        "dead_of_destinations": find_statements.dead_of_destinations(t),
        "dead_of_group": find_statements.dead_of_group(t),
        "page_by_id": paging_statements.by_id(t, waiting=True, archived=True, newer=False),
        "page_by_id_newer": paging_statements.by_id(t, waiting=True, archived=False, newer=True),
        "page_of_key": paging_statements.of_key(t, newer=False),
        "page_of_dead": paging_statements.dead_of_destinations(t, newer=False),
        "page_of_group": paging_statements.dead_of_group(t, newer=True),
        "groups": find_statements.groups(t),
        "everything": find_statements.everything(t),
        "ahead": find_statements.ahead(t),
        "states_of": find_statements.states(t),
        "places_of_dead": act_statements.places_of_dead(t),
        "next_dead": act_statements.next_dead(t, "destination"),
        "next_dead_of_group": act_statements.next_dead(t, "group"),
        "next_dead_counted": act_statements.next_dead(t, "group", counted=True),
        "next_waiting": act_statements.next_waiting(t),
        "replay": replay_statements.replay(t),
        "replay_kinds": replay_statements.kinds(past),
        "replay_chosen": replay_statements.chosen(past),
        "replay_named": replay_statements.named(t),
        "replay_originals": replay_statements.originals(past),
        "redrive": act_statements.redrive(t),
        "discard": act_statements.discard(t, archive=True),
        "discard_delete": act_statements.discard(t, archive=False),
        "redrive_leased": act_statements.redrive(t, leased=True),
        "discard_leased": act_statements.discard(t, archive=True, leased=True),
        "edit": act_statements.edit(t),
        "act_begun": background.begun(t),
        "act_begun_by": background.begun_by(t),
        "acts_taken": background.taken(t),
        "acts_renewed": background.renewed(t),
        "act_ended": background.ended(t, leased=True),
        "act": background.one(t),
        "acts_going": background.going(t),
        "audit_opened": audit.opened(t),
        "audit_closed": audit.closed(t),
        "audit_entry": audit.entry(t),
        "audit_entries": audit.entries(t),
        "audit_about": audit.about(t),
        "became": find_statements.became(t),
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

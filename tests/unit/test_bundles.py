"""A bundle's report says what became of each of its messages, and event listeners are told exactly that."""

from __future__ import annotations

import json

import pytest
from celery import Celery
from celery.utils.saferepr import saferepr
from hypothesis import given
from hypothesis import strategies as st

from outbox_tasks.broker.names import BUNDLE_TASK
from outbox_tasks.model import Bundle, Step, Ticket, Verdict
from outbox_tasks.relay.retry import MAX_CODE
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import LARGEST_BUNDLE
from outbox_tasks.worker.bundles import outcome_events, report
from outbox_tasks.worker.tasks import register

EVENT = {
    Step.SENT: "task-succeeded",
    Step.HANDED: "task-succeeded",
    Step.DISCARDED: "task-succeeded",
    Step.RETRY: "task-retried",
    Step.RELEASE: "task-retried",
    Step.OUTAGE: "task-retried",
    Step.DEAD: "task-failed",
    Step.STALE: None,
    Step.BEHIND: None,
}

codes = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
outcomes = st.lists(st.tuples(st.sampled_from(Step), codes), min_size=1, max_size=120)


def made(drawn: list[tuple[Step, str]]) -> tuple[Bundle, list[Verdict]]:
    tickets = tuple(Ticket(f"id-{n}", n % 4, "order.created") for n in range(len(drawn)))
    plain = (Step.SENT, Step.HANDED, Step.STALE, Step.BEHIND)
    verdicts = [
        Verdict(ticket, step, code=None if step in plain else code)
        for ticket, (step, code) in zip(tickets, drawn, strict=True)
    ]
    return Bundle("orders", "lease", tickets), verdicts


@given(outcomes)
def test_each_message_has_the_event_of_its_outcome(drawn: list[tuple[Step, str]]) -> None:
    bundle, verdicts = made(drawn)
    # What Celery hands to the event is the repr of what the task returned.
    events = list(outcome_events(bundle, saferepr(report(verdicts), maxlen=1_000_000), 1.5))
    assert [(ticket, kind) for ticket, kind, _ in events] == [
        (v.ticket, EVENT[v.step]) for v in verdicts if EVENT[v.step]
    ]
    told = {ticket.id: fields for ticket, _, fields in events}
    for v in verdicts:
        if v.step is Step.SENT:
            assert told[v.ticket.id] == {"result": "'sent'", "runtime": 1.5}
        elif v.step is Step.HANDED:
            assert told[v.ticket.id] == {"result": "'handed over'", "runtime": 1.5}
        elif v.step is Step.DISCARDED:
            assert told[v.ticket.id]["result"] == f"'discarded: {v.code}'"
        elif v.step not in (Step.STALE, Step.BEHIND):
            assert told[v.ticket.id]["exception"] == v.code


def test_a_report_names_only_what_was_not_sent() -> None:
    _, verdicts = made([(Step.SENT, "-"), (Step.RETRY, "busy"), (Step.DEAD, "wrong_type"), (Step.STALE, "-")])
    others = [[1, "retry", "busy"], [2, "dead", "wrong_type"], [3, "stale", ""]]
    assert json.loads(report(verdicts)) == {"sent": 1, "others": others}
    assert report(verdicts[:1]) == '{"sent": 1}'


@given(outcomes, st.integers(min_value=1))
def test_a_report_that_was_cut_tells_nothing(drawn: list[tuple[Step, str]], cut: int) -> None:
    bundle, verdicts = made(drawn)
    whole = report(verdicts)
    for result in (saferepr(whole, maxlen=cut % len(whole)), repr(whole)[: 1 + cut % len(whole)]):
        with pytest.raises(ValueError, match="report"):
            list(outcome_events(bundle, result, 1.5))


@pytest.mark.parametrize(
    "result",
    [
        "",
        "None",
        "'2 of 2 sent'",
        "'[]'",
        "'{\"others\": []}'",
        "'{\"sent\": 1}'",
        '\'{"sent": "2"}\'',
        '\'{"sent": 1, "others": [[2, "dead", "-"]]}\'',
        '\'{"sent": 1, "others": [[1, "unheard of", "-"]]}\'',
        '\'{"sent": 1, "others": [1]}\'',
    ],
)
def test_what_is_not_the_report_of_the_bundle_tells_nothing(result: str) -> None:
    bundle, _ = made([(Step.SENT, "-")] * 2)
    with pytest.raises(ValueError, match="report"):
        list(outcome_events(bundle, result, 1.5))


def test_the_longest_report_of_the_largest_bundle_is_not_cut() -> None:
    bundle, verdicts = made([(Step.RELEASE, "\U0001f4ee" * MAX_CODE)] * LARGEST_BUNDLE)
    app = Celery(set_as_current=False)
    register(app, Settings())
    result = saferepr(report(verdicts), app.tasks[BUNDLE_TASK].resultrepr_maxsize)
    assert len(list(outcome_events(bundle, result, 1.5))) == LARGEST_BUNDLE

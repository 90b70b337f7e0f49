"""A bundle's report says what became of each of its messages, and event listeners are told exactly that."""

from __future__ import annotations

from celery.utils.saferepr import saferepr
from hypothesis import given
from hypothesis import strategies as st

from outbox_tasks.model import Bundle, Step, Ticket, Verdict
from outbox_tasks.worker.bundles import outcome_events, report

EVENT = {
    Step.SENT: "task-succeeded",
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
    plain = (Step.SENT, Step.STALE, Step.BEHIND)
    verdicts = [
        Verdict(ticket, step, code=None if step in plain else code)
        for ticket, (step, code) in zip(tickets, drawn, strict=True)
    ]
    return Bundle("orders", "lease", tickets), verdicts


@given(outcomes)
def test_each_message_has_the_event_of_its_outcome(drawn: list[tuple[Step, str]]) -> None:
    bundle, verdicts = made(drawn)
    # What Celery hands to the event is the repr of what the task returned.
    events = list(outcome_events(bundle, saferepr(report(verdicts), maxlen=100_000), 1.5))
    assert [(ticket, kind) for ticket, kind, _ in events] == [
        (v.ticket, EVENT[v.step]) for v in verdicts if EVENT[v.step]
    ]
    told = {ticket.id: fields for ticket, _, fields in events}
    for v in verdicts:
        if v.step is Step.SENT:
            assert told[v.ticket.id] == {"result": "'sent'", "runtime": 1.5}
        elif v.step is Step.DISCARDED:
            assert told[v.ticket.id]["result"] == f"'discarded: {v.code}'"
        elif v.step not in (Step.STALE, Step.BEHIND):
            assert told[v.ticket.id]["exception"] == v.code


def test_a_report_names_only_what_was_not_sent() -> None:
    _, verdicts = made([(Step.SENT, "-"), (Step.RETRY, "busy"), (Step.DEAD, "wrong_type"), (Step.STALE, "-")])
    assert report(verdicts) == "1 of 4 sent 1:retry:busy 2:dead:wrong_type 3:stale:"

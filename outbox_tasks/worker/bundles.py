"""Shows a bundle to Celery as one publish task for each of its messages.

A bundle is one broker message, one begin, one send, one settle. Still Celery traces each of its messages as an
`outbox_tasks.publish` task, with that task's signals, retries and failures, and the worker sends the events of each to
listeners such as Flower. Its main process sends them: only that one knows whether anybody listens.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

from celery import Task, signals
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker import state
from celery.worker.request import Request

from outbox_tasks.broker.broker import publish_arguments
from outbox_tasks.broker.names import PUBLISH_TASK
from outbox_tasks.internals import quiet_tracer, tracer_is_wrapped
from outbox_tasks.model import Bundle, Step, Ticket, Verdict
from outbox_tasks.settings import PUBLISH_QUEUE
from outbox_tasks.worker.dead_processes import end_leases_of_dead_processes

log = logging.getLogger(__name__)

SIGNALS = {
    **dict.fromkeys((Step.SENT, Step.HANDED, Step.DISCARDED), signals.task_success), Step.DEAD: signals.task_failure
}  # fmt: skip
"""Celery's signal for each step; `task_retry` for the others."""

verdict_in_hand: ContextVar[Verdict | None] = ContextVar("verdict_in_hand", default=None)
"""The verdict on the message whose publish task Celery traces. In the request, a retry would send it along."""


class LeasingRequest(Request):
    """Ends the leases of a process of the pool that has ended: only the main process knows that for sure."""

    def on_failure(self, exc_info: Any, *args: Any, **keywords: Any) -> Any:
        """Celery calls this when the task failed, or its process ended or is about to be killed."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, WorkerLostError | TimeLimitExceeded) and self.worker_pid:
            end_leases_of_dead_processes(self.task.app.outbox_relay.settings, self.worker_pid)
        return super().on_failure(exc_info, *args, **keywords)


NOTHING = "claimed 0 in 0 bundles, 0 dead"
"""The result of a claim that did nothing."""


class ClaimRequest(LeasingRequest):
    """Sends its events when it ends, unless it did nothing: such claims run once a second, and would fill every list of
    tasks."""

    def send_event(self, type: str, **fields: Any) -> None:
        """Celery calls this as the claim starts and ends."""
        listening = self.eventer
        if type == "task-started" or fields.get("result") == repr(NOTHING) or not (listening and listening.enabled):
            return
        received = {"root_id": self.root_id, "parent_id": self.parent_id, "eta": None, "expires": None}
        listening.send("task-received", uuid=self.id, name=self.name, args="()", kwargs="{}", retries=0, **received)
        listening.send("task-started", uuid=self.id)
        listening.send(type, uuid=self.id, **fields)


class PublishRequest(LeasingRequest):
    """Runs even if somebody revoked its id. That is the message's id, so the worker would refuse later attempts too."""

    def revoked(self) -> bool:
        """Forget that somebody revoked its id."""
        state.revoked.discard(self.id)
        return bool(super().revoked())


class BundleRequest(LeasingRequest):
    """Sends the events of the messages in the bundle in place of its own."""

    def send_event(self, type: str, **fields: Any) -> None:
        """Celery calls this as the bundle starts, ends or expires. Never raises: events are only for show."""
        try:
            self._send_events(type, fields)
        except Exception:
            log.exception("could not send the events of a bundle's messages")

    def _send_events(self, type: str, fields: dict[str, Any]) -> None:
        listening = self.eventer
        if not (listening and listening.enabled and (not listening.groups or "task" in listening.groups)):
            return
        destination, lease, rows, *_ = self.args
        bundle = Bundle(destination, lease, tuple(Ticket(*row) for row in rows))
        if type == "task-started":
            for ticket in bundle.tickets:
                arguments = publish_arguments(bundle, ticket.event_type, ticket.attempt)
                listening.send(
                    "task-received",
                    uuid=ticket.id,
                    name=PUBLISH_TASK,
                    args=repr(arguments),
                    kwargs="{}",
                    retries=ticket.attempt,
                    eta=None,
                    expires=None,
                    root_id=ticket.id,
                    parent_id=None,
                )
                listening.send("task-started", uuid=ticket.id)
        elif type == "task-succeeded":
            for ticket, kind, more in outcome_events(bundle, fields["result"], fields["runtime"]):
                listening.send(kind, uuid=ticket.id, **more)
        else:
            for ticket in bundle.tickets:
                listening.send(type, uuid=ticket.id, **fields)


def report(verdicts: Sequence[Verdict]) -> str:
    """What became of a bundle's messages, as JSON: how many were sent, and position, step and code of each other one.

    Celery puts single quotes around it and escapes those inside, so there are none inside.
    """
    others = [
        [n, verdict.step, verdict.code or ""] for n, verdict in enumerate(verdicts) if verdict.step is not Step.SENT
    ]
    told = {"sent": len(verdicts) - len(others), "others": others} if others else {"sent": len(verdicts)}
    return json.dumps(told).replace("'", "\\u0027")


def _read(result: str, count: int) -> dict[int, tuple[Step, str]]:
    """The steps and codes of the messages that were not sent. Raises `ValueError` unless `result` is the repr of the
    whole `report` of `count` messages."""
    try:
        told = json.loads(result.removeprefix("'").removesuffix("'"))
        others = {int(n): (Step(step), str(code)) for n, step, code in told.get("others", ())}
        whole = told["sent"] + len(others) == count and others.keys() <= set(range(count))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError("the report of a bundle was cut, or is none") from error
    if not whole:
        raise ValueError(f"the report of a bundle is not one of {count} messages")
    return others


def outcome_events(bundle: Bundle, result: str, runtime: float) -> Iterable[tuple[Ticket, str, dict[str, Any]]]:
    """The event of each message of a bundle whose task returned `result`, the repr of a `report`. Raises `ValueError`
    before the first if that can't be read: then nobody knows which of them were sent."""
    others = _read(result, len(bundle.tickets))
    for n, ticket in enumerate(bundle.tickets):
        step, code = others.get(n, (Step.SENT, ""))
        if step is Step.SENT:
            yield ticket, "task-succeeded", {"result": "'sent'", "runtime": runtime}
        elif step is Step.HANDED:
            yield ticket, "task-succeeded", {"result": "'handed over'", "runtime": runtime}
        elif step is Step.DISCARDED:
            yield ticket, "task-succeeded", {"result": f"'discarded: {code}'", "runtime": runtime}
        elif step in (Step.RETRY, Step.RELEASE, Step.OUTAGE):
            yield ticket, "task-retried", {"exception": code, "traceback": None}
        elif step is Step.DEAD:
            yield ticket, "task-failed", {"exception": code, "traceback": None}


def trace_each(publish: Task, bundle: Bundle, verdicts: Sequence[Verdict]) -> None:
    """Run Celery's tracer over `publish` for each message, with its verdict in hand.

    The tracer makes retries and tells listeners. It takes up to a millisecond for a message, and a destination may
    refuse thousands, so it only runs where it has something to do.
    """
    tracer = _tracer(publish)
    steps = {step for step in {verdict.step for verdict in verdicts} if _is_traced(step)}
    traced = [verdict for verdict in verdicts if verdict.step in steps]
    headers = {
        "task": publish.name,
        "lang": "py",
        "ignore_result": True,
        "hostname": publish.request.hostname,
        "delivery_info": {"exchange": "", "routing_key": PUBLISH_QUEUE},
        "headers": {},  # otherwise Celery searches each request for the user's headers
    }
    for verdict in traced:
        ticket = verdict.ticket
        arguments = publish_arguments(bundle, ticket.event_type, ticket.attempt)
        request = {
            **headers,
            "id": ticket.id,
            "root_id": ticket.id,
            "correlation_id": ticket.id,
            "retries": max(0, ticket.attempt - 1),
        }
        token = verdict_in_hand.set(verdict)
        try:
            tracer(ticket.id, arguments, {}, request)
        finally:
            verdict_in_hand.reset(token)


def _is_traced(step: Step) -> bool:
    """Whether Celery is to retry, or somebody follows such tasks: by Celery's signals, or by wrapping its tracer as
    some monitors do. There is nothing to tell of a message that was not ours or was not sent."""
    if step in (Step.STALE, Step.BEHIND):
        return False
    followed = (signals.task_prerun, signals.task_postrun, SIGNALS.get(step, signals.task_retry))
    return step is Step.RETRY or tracer_is_wrapped() or any(signal.receivers for signal in followed)


def _tracer(publish: Task) -> Callable[..., Any]:
    """Celery's tracer, without its line at INFO for each success: the bundle has one for all."""
    tracer: Callable[..., Any] | None = publish.__dict__.get("bundle_tracer")
    if tracer is None:
        tracer = publish.bundle_tracer = quiet_tracer(publish)
    return tracer

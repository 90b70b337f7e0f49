"""Azure Service Bus: `azureservicebus://POLICY:KEY@NAMESPACE.servicebus.windows.net/QUEUE_OR_TOPIC`, in batches.

CloudEvents' AMQP binding, binary mode. The message id is the message's, by which duplicate detection drops repetitions.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

from outbox_tasks.destinations.common.in_time import in_time
from outbox_tasks.destinations.service_bus.answers import SESSIONS, is_for_all, outcome_of
from outbox_tasks.destinations.service_bus.link import Entry, Link
from outbox_tasks.destinations.service_bus.url import address_of
from outbox_tasks.errors import PermanentError
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import attributes, encoded, own_headers

LATE = Outcome.outage("timeout", "no answer in time; it may have been taken")
PREFIX = "cloudEvents_"
"""The binding also allows a colon at its end. But only this form works unquoted in JMS and in filters of
subscriptions."""


@dataclass
class Round:
    """The state of one `publish`: the outcome of each message so far."""

    deadline: float
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    ended: Outcome | None = None
    """Why there is no point in sending more."""

    @property
    def rest(self) -> Outcome:
        """The outcome of what was not reached. If others were sent in time, the time was only too short."""
        return self.ended or (Outcome.behind() if Outcome.sent() in self.outcomes.values() else LATE)

    @property
    def lost(self) -> bool:
        """Whether nobody knows what state the connection is in."""
        ended = (*self.outcomes.values(), *([self.ended] if self.ended else ()))
        return any(outcome.result is Result.OUTAGE for outcome in ended)

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        self.outcomes[entry.nth] = outcome
        if outcome.code == "timeout":
            self.ended = self.rest
        elif is_for_all(outcome):
            self.ended = outcome


class ServiceBusPublisher:
    """Sends to one queue or topic. Sent means that the service has accepted the message."""

    batch_size = 100

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._address = address_of(destination)
        self._timeout = settings.send_timeout
        self._outgoing = partial(outgoing, source=settings.source, sessions=self._address.sessions)
        self._link = PerProcess(partial(Link, self._address, self._timeout))

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """One batch for all, or as few batches as sizes and keys allow, one after the other. The messages of a refused
        batch are sent one by one."""
        sending = Round(time.monotonic() + self._timeout * 0.95)
        made, outcomes = encoded(messages, self._outgoing)
        if made:
            outcomes |= self._run([Entry(place, message) for place, message in made.items()], sending)
        return [outcomes[index] for index in range(len(messages))]

    def close(self) -> None:
        """Close the connection."""
        link = self._link.take()
        if link is not None:
            link.close()

    def _run(self, entries: Sequence[Entry], sending: Round) -> dict[int, Outcome]:
        """Send in a thread. No option limits how long the client looks for a name or for credentials, or, without TLS,
        waits for a server's first answer."""
        link = self._link.get()
        late = True
        try:
            in_time(partial(self._send_all, link, entries, sending), sending.deadline)
            late = False
        except TimeoutError:
            pass
        finally:  # another time limit may strike here, and nothing may be sent afterwards
            outcomes = dict.fromkeys((entry.nth for entry in entries), sending.rest) | sending.outcomes
            if late or link.given_up:
                link.given_up = True
                self._link.take()
        return outcomes

    def _send_all(self, link: Link, entries: Sequence[Entry], sending: Round) -> None:
        try:
            for members, batch in link.fitting(entries):
                self._send(link, members, batch, sending)
        except Exception as error:
            outcome = outcome_of(error)
            dead = outcome.result is Result.DEAD  # it concerns the queue or topic, not a message
            sending.ended = Outcome.outage("unroutable", outcome.error or "") if dead else outcome
        finally:
            link.given_up |= sending.lost
            if link.given_up:
                link.close()

    def _send(self, link: Link, members: Sequence[Entry], batch: ServiceBusMessageBatch | None, sending: Round) -> None:
        if sending.ended is not None:
            return
        if batch is None and (excess := link.excess(members[0].message)):
            sending.settle(members[0], Outcome.dead("too_large", excess))
            return
        if batch is None or len(members) == 1:
            self._send_each(link, members, sending)
            return
        outcome = self._sent(link, batch, members, sending)
        if outcome.result is Result.SENT or is_for_all(outcome):
            for entry in members:
                sending.settle(entry, outcome)
            return
        if outcome.code == "detached":  # the service may have taken it
            together = Outcome.unforeseen(f"{outcome.code}: {outcome.error}", together=True)
            for entry in members:
                sending.settle(entry, together)
            return
        for entry in members:
            del sending.outcomes[entry.nth]
        self._send_each(link, members, sending)

    def _send_each(self, link: Link, members: Sequence[Entry], sending: Round) -> None:
        for entry in members:
            if sending.ended is not None:
                return
            outcome = self._sent(link, entry.message, [entry], sending)
            if outcome.code == "not_allowed" and not self._address.sessions and SESSIONS.search(outcome.error or ""):
                outcome = Outcome.outage("needs_sessions", outcome.error or "")
            sending.settle(entry, outcome)

    def _sent(
        self, link: Link, what: ServiceBusMessage | ServiceBusMessageBatch, members: Sequence[Entry], sending: Round
    ) -> Outcome:
        sending.outcomes.update((entry.nth, LATE) for entry in members)  # stays, if the time is up during the send
        try:
            link.send(what, sending.deadline)
        except Exception as error:
            return outcome_of(error)
        return Outcome.sent()


def outgoing(message: LeasedMessage, source: str, *, sessions: bool) -> ServiceBusMessage:
    """The message as it is sent. Raises `PermanentError`."""
    try:
        own = own_headers(message)
        # Readers take both prefixes: a header of the message's own must not pass for ours.
        texts = {name: value for name, value in own.items() if not name.lower().startswith("cloudevents")}
        texts |= {f"{PREFIX}{name}": value for name, value in attributes(message, source).items()}
        "".join((*texts, *texts.values(), message.content_type, message.event_type)).encode()
    except UnicodeEncodeError as error:  # found here, it fails this message; found at the send, it would fail the batch
        raise PermanentError(f"a text of the message is not Unicode: {error}", code="not_unicode") from error
    group = message.id if message.key is None else message.key
    if not 0 < len(group) <= 128:  # characters of a session's or a partition's name
        group = hashlib.sha256(group.encode()).hexdigest()
    texts[f"{PREFIX}specversion"] = "1.0"
    properties: Any = texts  # the client declares a narrower type
    return ServiceBusMessage(
        message.payload,
        application_properties=properties,
        content_type=message.content_type,
        subject=message.event_type,
        message_id=message.id,
        session_id=group if sessions else None,
        partition_key=group if not sessions and message.key is not None else None,
    )

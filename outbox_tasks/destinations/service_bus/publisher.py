"""Azure Service Bus: `azureservicebus://POLICY:KEY@NAMESPACE.servicebus.windows.net/QUEUE_OR_TOPIC`, in batches.

CloudEvents' AMQP binding, binary mode. The message id is the message's, by which duplicate detection drops repetitions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

from outbox_tasks.destinations.service_bus.answers import SESSIONS, TRANSIENT, is_for_all, outcome_of
from outbox_tasks.destinations.service_bus.link import Entry, Link
from outbox_tasks.destinations.service_bus.message import outgoing
from outbox_tasks.destinations.service_bus.url import address_of
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import encoded

IDLE_SECONDS = 120.0
"""After so long an idle connection is replaced: the service closes such connections, and the client does not notice."""
LATE = Outcome.outage("timeout", "no answer in time")
UNSENT = Outcome.retry("timeout", "there was no time left to send it")


@dataclass
class Round:
    """The state of one `publish`: the outcome of each message so far."""

    deadline: float
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    ended: Outcome | None = None
    """Why there is no point in sending more."""
    answered: bool = False
    cut: int = 0
    """How many sends in a row ended with a closed link."""

    @property
    def lost(self) -> bool:
        """Whether nobody knows what state the connection is in."""
        ended = (*self.outcomes.values(), *([self.ended] if self.ended else []))
        return any(outcome.result is Result.OUTAGE or outcome.code == "timeout" for outcome in ended)

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        self.outcomes[entry.nth] = outcome
        self.answered |= outcome.result in (Result.SENT, Result.DEAD)
        if is_for_all(outcome):
            self.ended = outcome
        self.cut = self.cut + 1 if outcome.code == "detached" else 0
        if self.cut > 1:  # a single one may have been the message's fault
            self.ended = Outcome.outage("connection", outcome.error or "")


class ServiceBusPublisher:
    """Sends to one queue or topic. Sent means that the service has accepted the message."""

    batch_size = 100

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._address = address_of(destination)
        self._timeout = settings.send_timeout
        self._outgoing = partial(outgoing, source=settings.source, sessions=self._address.sessions)
        self._mixed = True
        """Whether a batch may have several keys. Partitioned entities refuse that, and only the refusal tells."""
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
        link = self._connected()
        over = False
        try:
            over = link.run(partial(self._send_all, link, entries, sending), sending.deadline)
        finally:  # a time limit may strike here, and nothing may be sent afterwards
            ended = sending.ended or (UNSENT if sending.answered else LATE)
            outcomes = dict.fromkeys((entry.nth for entry in entries), ended) | sending.outcomes
            if not over or sending.lost:
                self._link.take()
                link.give_up()
        return outcomes

    def _connected(self) -> Link:
        link = self._link.get()
        if time.monotonic() - link.used > IDLE_SECONDS:
            self._link.take()
            link.give_up()  # does not wait for the other side
        return self._link.get()

    def _send_all(self, link: Link, entries: Sequence[Entry], sending: Round) -> None:
        try:
            link.open()
        except Exception as error:
            outcome = outcome_of(error)
            if outcome.result is Result.DEAD:  # it concerns the queue or topic, not a message
                outcome = Outcome.outage("unroutable", outcome.error or "")
            sending.ended = outcome
            return
        try:
            for group in self._together(entries):
                for members, batch in link.fitting(group):
                    self._send(link, members, batch, sending)
        except Exception as error:
            sending.ended = outcome_of(error)

    def _together(self, entries: Sequence[Entry]) -> list[Sequence[Entry]]:
        """What may be in one batch."""
        if self._mixed:
            return [entries]
        groups: dict[str, list[Entry]] = {}
        for entry in entries:
            groups.setdefault(entry.partition, []).append(entry)
        return list(groups.values())

    def _send(self, link: Link, members: Sequence[Entry], batch: ServiceBusMessageBatch | None, sending: Round) -> None:
        if sending.ended is not None:
            return
        if batch is None and (excess := link.excess(members[0].message)):
            sending.settle(members[0], Outcome.dead("too_large", excess))
            return
        if batch is None or len(members) == 1:
            self._send_each(link, members, sending)
            return
        outcome = self._sent(link, batch, sending)
        if outcome.result is Result.SENT or is_for_all(outcome):
            for entry in members:
                sending.settle(entry, outcome)
            return
        if outcome.code == "detached":  # the service may have taken it
            together = Outcome.unforeseen(f"{outcome.code}: {outcome.error}", together=True)
            for entry in members:
                sending.settle(entry, together)
            return
        self._send_each(link, members, sending)
        taken = all(sending.outcomes.get(entry.nth) == Outcome.sent() for entry in members)
        if taken and outcome.code not in TRANSIENT and len({entry.partition for entry in members}) > 1:
            self._mixed = False

    def _send_each(self, link: Link, members: Sequence[Entry], sending: Round) -> None:
        for entry in members:
            if sending.ended is not None:
                return
            outcome = self._sent(link, entry.message, sending)
            if outcome.code == "not_allowed" and not self._address.sessions and SESSIONS.search(outcome.error or ""):
                outcome = Outcome.outage("needs_sessions", outcome.error or "")
            sending.settle(entry, outcome)

    def _sent(self, link: Link, what: ServiceBusMessage | ServiceBusMessageBatch, sending: Round) -> Outcome:
        try:
            link.send(what, sending.deadline)
        except Exception as error:
            outcome = outcome_of(error)
            return UNSENT if sending.answered and outcome.code == "timeout" else outcome
        return Outcome.sent()

"""A librdkafka producer: what it is given, what becomes of each message, and its end."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from outbox_tasks.model import Outcome

log = logging.getLogger(__name__)

TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
REFUSED = {KafkaError.INVALID_RECORD: "invalid_record", **dict.fromkeys(TOO_LARGE, "too_large")}
"""The message itself can't be taken: dead. A broker gives this error to the whole batch."""

OUTAGES = {
    "unauthorized": (
        KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ),
    "unroutable": (
        KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION,
        KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
    ),
    "connection": (
        KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._SSL,
        KafkaError.BROKER_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION,
    ),
    "timeout": (
        KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT,
    ),
}  # fmt: skip
"""The destination is out of reach or out of order. Any other error is a retry, under its own name."""

CODES = {error: code for code, errors in OUTAGES.items() for error in errors}

LOST = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._FATAL}
"""The producer threw the message away without an answer. The broker may have it, even if it was still in the queue:
that may have been its second try."""

PURGE_SECONDS = 0.2
"""At most, to hear what a purge has thrown away."""

Record = dict[str, Any]
"""A message as the keywords of `Producer.produce`."""


class DebugLog:
    """Writes all that librdkafka logs at DEBUG. The outcomes say what went wrong, and what librdkafka calls an
    emergency only costs a new producer."""

    def log(self, _: int, text: str, *values: object) -> None:
        log.debug(text, *values)


class Session:
    """A producer, and the errors that it reported. Its threads belong to the process that made it."""

    def __init__(self, conf: dict[str, Any]) -> None:
        self.troubled = False
        self._fatal: KafkaError | None = None
        self._errors: deque[KafkaError] = deque(maxlen=100)
        # Not a method of ours: that would be a cycle, and the producer would live until garbage is collected.
        self._held = [Producer({**conf, "error_cb": self._errors.append}, logger=DebugLog())]

    @property
    def _producer(self) -> Producer:
        return self._held[0]

    def forget_errors(self) -> None:
        """Forget what happened to its connections while nothing was sent."""
        self._producer.poll(0)
        self._errors.clear()

    def send(self, topic: str, records: Sequence[Record], deadline: float) -> list[Outcome]:
        """The outcomes, in order. If the broker refuses a batch, it does not say which message is bad."""
        reports: dict[int, KafkaError | None] = {}
        outcomes = self._produce(topic, records, reports)
        self._wait(deadline)
        reason = self._reason()  # before the purge: librdkafka may report that as an error too
        if len(self._producer):
            self.troubled = True
            self._producer.purge(blocking=False)  # a thread may be busy with a name server: don't wait for it
            self._wait(time.monotonic() + PURGE_SECONDS)
        self.troubled |= self._fatal is not None or any(report is not None for report in reports.values())
        lost = KafkaError(KafkaError._PURGE_INFLIGHT)
        together = sum(report is not None and report.code() in REFUSED for report in reports.values()) > 1
        return [outcomes.get(n) or _reported(reports.get(n, lost), reason, together) for n in range(len(records))]

    def end(self) -> None:
        """Throw away what is left, and end the producer in another thread, because it waits for its own threads."""
        self._producer.purge(blocking=False)
        threading.Thread(target=self._held.clear, name="end of a Kafka producer", daemon=True).start()

    def _produce(
        self, topic: str, records: Sequence[Record], reports: dict[int, KafkaError | None]
    ) -> dict[int, Outcome]:
        """Queue them. Returns the outcomes of those that were not queued."""

        def reported(number: int, error: KafkaError | None, _: object) -> None:
            reports[number] = error

        outcomes: dict[int, Outcome] = {}
        for number, record in enumerate(records):
            try:
                self._producer.produce(topic, on_delivery=partial(reported, number), **record)
            except KafkaException as error:
                outcomes[number] = _outcome(error.args[0])
        return outcomes

    def _wait(self, deadline: float) -> None:
        """Wait until each message has its report, or until waiting makes no sense. It looks ten times a second."""
        while (now := time.monotonic()) < deadline and self._serve(min(0.1, deadline - now)):
            if self._fatal is not None:
                deadline = min(deadline, now + PURGE_SECONDS)  # for the reports of what was on its way
            elif any(CODES.get(error.code()) == "unauthorized" for error in self._errors):
                return  # the login was refused
            elif any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in self._errors):
                deadline = min(deadline, now + 2.0)  # seconds that all brokers may be down

    def _serve(self, seconds: float) -> int:
        """Have reports and errors brought to us; returns how many messages are without a report."""
        try:
            return self._producer.flush(seconds)
        except KafkaException as error:  # only a fatal error raises here
            self._fatal = error.args[0]
            return len(self._producer)

    def _reason(self) -> Outcome:
        """Why there are messages without a delivery report: the worst error that was reported."""
        if self._fatal is not None:
            return Outcome.retry("fatal", self._fatal.str())
        for code in ("unauthorized", "connection"):
            for error in self._errors:
                if CODES.get(error.code()) == code:
                    return Outcome.outage(code, error.str())
        return Outcome.outage("timeout", "no delivery report in time")


def _reported(report: KafkaError | None, reason: Outcome, together: bool) -> Outcome:
    """What a delivery report means; `reason` is why we have thrown the message away, if we have. `together`: several
    messages were refused, perhaps because of one of them."""
    if report is None:
        return Outcome.sent()
    if report.code() in LOST:
        return replace(reason, error=f"{reason.error}; it may have been taken")
    if together and report.code() in REFUSED:
        return Outcome.unforeseen(report.str(), together=True)
    return _outcome(report)


def _outcome(error: KafkaError) -> Outcome:
    """What an error that belongs to a message means."""
    code, text = error.code(), error.str()
    if code in REFUSED:
        return Outcome.dead(REFUSED[code], text)
    if code in CODES:
        return Outcome.outage(CODES[code], text)
    return Outcome.retry(error.name().strip("_").lower(), text)

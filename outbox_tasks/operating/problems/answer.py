"""What a broker says of itself when it is asked how it is."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from kombu import Producer

from outbox_tasks.broker.broker import CLUSTER, Broker, queue_length
from outbox_tasks.broker.names import queues_of
from outbox_tasks.errors import BrokerUnreachable


@dataclass(frozen=True, slots=True)
class Silence:
    """A broker that does not answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """A broker that answers."""

    lengths: dict[str, int]
    """How many of Celery's messages wait in each of the relay's queues."""
    info: dict[str, Any] | None
    """The INFO of a Redis; None: it is not a Redis."""
    seconds: float
    """How long a round trip took; to ask for the length of a queue takes two."""

    @classmethod
    def of(cls, broker: Broker, reached: threading.Event) -> BrokerAnswer | Silence:
        """Ask it: some sixteen round trips. `reached` is set after the first."""
        try:
            with broker.producer() as producer:
                producer.connection.ensure_connection(max_retries=1)
                reached.set()
                info = _info(producer)
                if info is not None and info.get("cluster_enabled"):
                    return Silence(CLUSTER)
                began = time.monotonic()
                lengths = {queue: queue_length(producer, queue) for queue in queues_of(broker.settings)}
                seconds = (time.monotonic() - began) / (2 * len(lengths))
        except BrokerUnreachable as away:
            return Silence(str(away.reason).rstrip("."))
        except Exception as failed:  # whatever a transport raises, the broker gives no answer
            return Silence(f"{type(failed).__name__}: {failed}".rstrip("."))
        return cls(lengths, info, seconds)


def _info(producer: Producer) -> dict[str, Any] | None:
    """A Redis is asked only for INFO: managed servers forbid CONFIG."""
    channel = producer.channel
    if not hasattr(channel, "client"):
        return None
    with channel.conn_or_acquire() as client:
        return dict(client.info())

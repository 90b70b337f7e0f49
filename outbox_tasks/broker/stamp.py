"""The stamp on a broker: which outbox its relay serves. Two relays on one broker would take each other's tasks.

In a Redis it is a key, which also shows that the Redis still has its data. In RabbitMQ it is an exchange that carries
no messages: RabbitMQ refuses to declare it again with another alternate exchange, and says which one it has. Other
brokers have none.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import Any

from amqp.exceptions import NotFound, PreconditionFailed
from kombu import Producer

from outbox_tasks.broker.names import STAMP

log = logging.getLogger(__name__)

HAS = re.compile(r"current is (?:the value )?'(.*?)'(?: of type '\w+')?$")
"""How RabbitMQ ends its refusal."""


def leave(producer: Producer, outbox: str) -> str | None:
    """Leave the stamp of an outbox, unless there is one. Returns the one that was there; None: none was. For a broker
    without stamps, or where we may not leave one, `outbox`."""
    client = getattr(producer.channel, "client", None)
    try:
        if client is not None:
            return None if client.set(STAMP, outbox, nx=True) else _of_redis(producer, client) or outbox
        if _is_amqp(producer):
            return _declared(producer, outbox)
    except producer.connection.channel_errors as error:
        log.debug("the broker took no stamp: %s", error)
    return outbox


def look(producer: Producer, outbox: str) -> str | None:
    """The stamp that is there, as an outbox finds it; None: there is none. Leaves nothing."""
    client = getattr(producer.channel, "client", None)
    with suppress(*producer.connection.channel_errors):
        if client is not None:
            return _of_redis(producer, client)
        if _is_amqp(producer):
            with suppress(NotFound), producer.connection.channel() as channel:
                channel.exchange_declare(STAMP, "fanout", passive=True)
                return _declared(producer, outbox)
    return None


def replace(producer: Producer, outbox: str) -> None:
    """Put the stamp of an outbox in the place of another one's."""
    client = getattr(producer.channel, "client", None)
    if client is not None:
        client.set(STAMP, outbox)
    elif _is_amqp(producer):
        with producer.connection.channel() as channel:
            channel.exchange_delete(STAMP)
        _declared(producer, outbox)


def _of_redis(producer: Producer, client: Any) -> str | None:
    # kombu puts the prefix before the key of SET, but not of GET.
    found: bytes | None = client.get(producer.channel.global_keyprefix + STAMP)
    return None if found is None else found.decode(errors="replace")


def _is_amqp(producer: Producer) -> bool:
    return bool(producer.connection.transport.driver_type == "amqp")


def _declared(producer: Producer, outbox: str) -> str:
    """Declare the exchange; returns the outbox that it belongs to."""
    try:
        # On its own channel, which a refusal closes.
        with producer.connection.channel() as channel:
            channel.exchange_declare(
                STAMP, "fanout", durable=True, auto_delete=False, arguments={"alternate-exchange": outbox}
            )
    except PreconditionFailed as refused:
        text = str(refused.reply_text)
        found = HAS.search(text)
        return found[1] if found else text
    return outbox

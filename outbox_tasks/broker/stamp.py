"""The stamp on a broker says which outbox its relay serves. Two relays on one broker would take each other's tasks.

In Redis the stamp is a key. While the key is there, Redis has not lost its data. In RabbitMQ it is an exchange that
carries no messages. The name of its alternate exchange is the outbox: RabbitMQ refuses to declare the exchange again
with another name, and its refusal says which name it has. Other brokers have no stamp.
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

REFUSAL_END = re.compile(r"current is (?:the value )?'(.*?)'(?: of type '\w+')?$")
"""The end of RabbitMQ's refusal, with the name of the alternate exchange."""


def leave(producer: Producer, outbox: str) -> str | None:
    """Leave the stamp of an outbox, unless the broker has a stamp. Returns the stamp that was there before; None: there
    was none. Returns `outbox` if the broker has no stamps, or does not let us leave one."""
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
    """The stamp that is there; None: there is none. This leaves no stamp. `outbox`: RabbitMQ tells its stamp only to
    those who try to leave their own."""
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
    """Leave the stamp of an outbox, in place of the one that is there."""
    client = getattr(producer.channel, "client", None)
    if client is not None:
        client.set(STAMP, outbox)
    elif _is_amqp(producer):
        with producer.connection.channel() as channel:
            channel.exchange_delete(STAMP)
        _declared(producer, outbox)


def _of_redis(producer: Producer, client: Any) -> str | None:
    # kombu puts the prefix before the key of SET, but not of GET.
    stamp: bytes | None = client.get(producer.channel.global_keyprefix + STAMP)
    return None if stamp is None else stamp.decode()


def _is_amqp(producer: Producer) -> bool:
    return bool(producer.connection.transport.driver_type == "amqp")


def _declared(producer: Producer, outbox: str) -> str:
    """Declare the exchange. Returns the outbox that it belongs to."""
    try:
        # On a channel of its own, because a refusal closes it.
        with producer.connection.channel() as channel:
            channel.exchange_declare(
                STAMP, "fanout", durable=True, auto_delete=False, arguments={"alternate-exchange": outbox}
            )
    except PreconditionFailed as refused:
        text = str(refused.reply_text)
        end = REFUSAL_END.search(text)
        return end[1] if end else text
    return outbox

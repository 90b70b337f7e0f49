"""What the publisher uses of azure-servicebus beyond its documentation. Seen on azure-servicebus 7.15."""

from __future__ import annotations

from azure.servicebus import ServiceBusSender


def largest_message(sender: ServiceBusSender | None) -> int:
    """Bytes of the largest message that the entity takes, which may be more than a batch may have; 0: not known yet."""
    return getattr(sender, "_max_message_size_on_link", 0)

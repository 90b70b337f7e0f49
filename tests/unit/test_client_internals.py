"""The installed clients still have, and still use, what the `internals` of their publishers rely on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from azure.servicebus import ServiceBusSender
from nats.aio.client import Client as Nats
from paho.mqtt.client import Client as Paho
from paho.mqtt.enums import CallbackAPIVersion


def uses(function: Callable[..., Any], *names: str) -> bool:
    return set(names) <= set(function.__code__.co_names)


def test_paho_hands_each_acknowledgement_to_handle_pubackcomp() -> None:
    assert uses(Paho._packet_handle, "_handle_pubackcomp")
    assert uses(Paho._handle_pubackcomp, "_in_packet", "_out_message_mutex", "_out_messages")
    client = Paho(CallbackAPIVersion.VERSION2)
    assert {"packet"} <= client._in_packet.keys()


def test_nats_keeps_the_greeting_of_the_server_in_server_info() -> None:
    assert Nats()._server_info == {}
    assert uses(Nats._process_connect_init, "_server_info")


def test_service_bus_knows_the_largest_message_of_a_link() -> None:
    assert uses(ServiceBusSender.create_message_batch, "_max_message_size_on_link")


def test_redis_cuts_a_pipeline_at_the_buffer_cutoff_of_its_connection() -> None:
    assert uses(redis.Connection.pack_commands, "_buffer_cutoff")

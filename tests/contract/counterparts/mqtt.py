"""MQTT 5: the program mosquitto, and a subscriber that was there before."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import ClassVar
from uuid import uuid4

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from tests.contract.counterparts import Received
from tests.contract.own_server import ChildCounterpart, listens

CONFIGURATION = """
user root
per_listener_settings true
persistence false
max_queued_messages 0
message_size_limit {largest}
max_packet_size {packet}
listener {port} {host}
password_file {directory}/passwords
acl_file {directory}/permissions
"""
PERMISSIONS = "user teller\ntopic readwrite #\ntopic deny private/#\n"


class Counterpart(ChildCounterpart):
    """mosquitto, which forgets everything at each end."""

    name: ClassVar[str] = "mqtt"
    # Texts of MQTT carry all of Unicode, but no control characters: test_mqtt.py sends both.
    control_characters: ClassVar[bool] = False
    largest: ClassVar[int] = 256 * 1024
    packet: ClassVar[int] = 512 * 1024

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self._arrived: list[MQTTMessage] = []

    @classmethod
    def missing(cls) -> str | None:
        missing = [program for program in ("mosquitto", "mosquitto_passwd") if not shutil.which(program)]
        return f"not installed: {', '.join(missing)}" if missing else None

    def launch(self) -> Child:
        passwords, file = self.directory / "passwords", self.directory / "mosquitto.conf"
        (self.directory / "permissions").write_text(PERMISSIONS)
        passwords.write_text("")
        passwords.chmod(0o600)
        with Child.start("mosquitto_passwd", ["mosquitto_passwd", "-b", str(passwords), "teller", "r:ght"]) as made:
            assert made.wait(10) == 0, made.tail()
        facts = {"host": LOOPBACK, "port": self.port, "directory": self.directory}
        file.write_text(CONFIGURATION.format(**facts, largest=self.largest, packet=self.packet))
        return Child.start(self.name, ["mosquitto", "-c", str(file)], cwd=self.directory)

    def answers(self) -> bool:
        return self.child is not None and "running" in self.child.tail(100) and listens(self.port)

    def new_place(self) -> str:
        self._arrived = []
        return super().new_place()

    def url(self, place: str) -> str:
        self._subscribed(place, until=lambda arrived: True)
        return self.url_of(place)

    def url_of(self, topic: str) -> str:
        return f"mqtt://teller:r%3Aght@{LOOPBACK}:{self.port}/{topic}"

    def url_at(self, port: int) -> str:
        return f"mqtt://{LOOPBACK}:{port}/{self.place}"

    def wrong_password_url(self, place: str) -> str:
        return f"mqtt://teller:wrong@{LOOPBACK}:{self.port}/{place}"

    def received(self) -> list[Received]:
        return [_received(message) for message in self.raw()]

    def raw(self) -> list[MQTTMessage]:
        """The messages of the test's topic, since it was made."""
        mark = uuid4().hex.encode()
        arrived = self._subscribed(self.place, mark, lambda arrived: arrived[-1:] == [mark])
        ours = [message for message in arrived if message.topic == self.place]
        # The server repeats what this subscriber had no time to confirm before it left.
        known = {_said(message) for message in self._arrived}
        self._arrived += [message for message in ours if not (message.dup and _said(message) in known)]
        return self._arrived

    def _subscribed(
        self, place: str, mark: bytes = b"", until: Callable[[list[bytes]], bool] = lambda arrived: True
    ) -> list[MQTTMessage]:
        """Go on with the session of the place's subscriber, which the server keeps while nobody is there."""
        arrived: list[MQTTMessage] = []
        subscribed: list[int] = []
        client = Client(CallbackAPIVersion.VERSION2, f"reader-{place}", protocol=MQTTProtocolVersion.MQTTv5)
        client.username_pw_set("teller", "r:ght")
        client.on_connect = lambda *_: client.subscribe([(place, AT_LEAST_ONCE), (f"mark/{place}", AT_LEAST_ONCE)])
        client.on_subscribe = lambda *_: subscribed.append(1) or (mark and client.publish(f"mark/{place}", mark, 1))
        client.on_message = lambda _, __, message: arrived.append(message)
        lasting = Properties(PacketTypes.CONNECT)
        lasting.SessionExpiryInterval = 3600
        client.connect(LOOPBACK, self.port, clean_start=False, properties=lasting)
        deadline = time.monotonic() + 10
        while not subscribed or not until([message.payload for message in arrived]):
            assert time.monotonic() < deadline, "the subscriber has got nothing"
            client.loop(0.1)
        client.disconnect()
        while client.socket() is not None:
            client.loop(0.1)
        return arrived


AT_LEAST_ONCE = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)


def _said(message: MQTTMessage) -> tuple[bytes, str]:
    return message.payload, str(message.properties)


def _received(message: MQTTMessage) -> Received:
    properties = message.properties
    assert properties is not None
    pairs = dict(properties.UserProperty)
    assert pairs.pop("specversion") == "1.0"
    return Received(
        {n: v for n, v in pairs.items() if not n.startswith("h_")},
        message.payload,
        {n.removeprefix("h_"): v for n, v in pairs.items() if n.startswith("h_")},
        properties.ContentType,
    )

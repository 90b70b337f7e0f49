"""MQTT 5: the program mosquitto, and a reader that was there before."""

from __future__ import annotations

import shutil
import threading
from typing import ClassVar
from uuid import uuid4

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child
from tests.conftest import eventually
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

AT_LEAST_ONCE = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)


class Counterpart(ChildCounterpart):
    """mosquitto, which forgets everything at each end."""

    name: ClassVar[str] = "mqtt"
    # Texts of MQTT carry all of Unicode, but no control characters: test_mqtt.py sends both.
    control_characters: ClassVar[bool] = False
    largest: ClassVar[int] = 256 * 1024
    packet: ClassVar[int] = 512 * 1024

    def __init__(self) -> None:
        super().__init__()
        self._arrived: list[MQTTMessage] = []
        self._reader: Client | None = None

    @classmethod
    def missing(cls) -> str | None:
        missing = [program for program in ("mosquitto", "mosquitto_passwd") if not shutil.which(program)]
        return f"not installed: {', '.join(missing)}" if missing else None

    def launch(self) -> Child:
        passwords, file = self.directory / "passwords", self.directory / "mosquitto.conf"
        (self.directory / "permissions").write_text(PERMISSIONS)
        passwords.write_text("")
        passwords.chmod(0o600)
        with Child.start("mosquitto_passwd", ["mosquitto_passwd", "-b", str(passwords), "teller", "r:ght"]) as program:
            assert program.wait(10) == 0, program.tail()
        facts = {"host": LOOPBACK, "port": self.port, "directory": self.directory}
        file.write_text(CONFIGURATION.format(**facts, largest=self.largest, packet=self.packet))
        return Child.start(self.name, ["mosquitto", "-c", str(file)], cwd=self.directory)

    def answers(self) -> bool:
        return self.child is not None and "running" in self.child.tail(100) and listens(self.port)

    def end(self) -> None:
        self._leave()
        super().end()

    def new_place(self) -> str:
        self._arrived = []
        return super().new_place()

    def url(self, place: str) -> str:
        """Its reader is there from now on, as long as the server runs."""
        self._leave()
        subscribed = threading.Event()
        topics = [(topic, AT_LEAST_ONCE) for topic in (place, f"mark/{place}")]
        reader = self._reader = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        reader.username_pw_set("teller", "r:ght")
        reader.on_connect = lambda *_: reader.subscribe(topics)
        reader.on_subscribe = lambda *_: subscribed.set()
        reader.on_message = lambda _, __, message: self._arrived.append(message)
        reader.connect(LOOPBACK, self.port)
        reader.loop_start()
        assert subscribed.wait(10)
        return self.url_of(place)

    def url_of(self, topic: str) -> str:
        return f"mqtt://teller:r%3Aght@{LOOPBACK}:{self.port}/{topic}"

    def url_on(self, port: int, place: str) -> str:
        return f"mqtt://{LOOPBACK}:{port}/{place}"

    def wrong_password_url(self, place: str) -> str:
        return f"mqtt://teller:wrong@{LOOPBACK}:{self.port}/{place}"

    def forbidden_url(self, place: str) -> str:
        return self.url_of(f"private/{place}")

    def raw(self) -> list[MQTTMessage]:
        """The messages of the test's topic, since it was made."""
        mark = uuid4().hex.encode()
        assert self._reader is not None
        self._reader.publish(f"mark/{self.place}", mark, 1)
        eventually(lambda: any(message.payload == mark for message in self._arrived))
        return [message for message in self._arrived if message.topic == self.place]

    @staticmethod
    def read(arrived: MQTTMessage) -> Received:
        properties = arrived.properties
        assert properties is not None
        pairs = dict(properties.UserProperty)
        assert pairs.pop("specversion") == "1.0"
        own = {n.removeprefix("h_"): pairs.pop(n) for n in list(pairs) if n.startswith("h_")}
        return Received(pairs, arrived.payload, own, properties.ContentType)

    def _leave(self) -> None:
        if self._reader is not None:
            self._reader.disconnect()
            self._reader.loop_stop()
            self._reader.on_connect = None  # or its sockets stay open until garbage is collected
        self._reader = None

"""What the publisher uses of paho that its documentation does not promise. Seen on paho-mqtt 2.2."""

from __future__ import annotations

from typing import Literal

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode


class AcknowledgedClient(Client):
    """paho's client, which keeps the reason code of each acknowledgement. paho itself takes some that servers send
    (mosquitto's 0x95, packet too large) for a broken packet, and ends the connection."""

    answers: dict[int, int]
    """Reason codes by packet number."""

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        number = int.from_bytes(packet[:2], "big")
        with self._out_message_mutex:
            del self._out_messages[number]
            self.answers[number] = packet[2] if len(packet) > 2 else 0
        return MQTTErrorCode.MQTT_ERR_SUCCESS

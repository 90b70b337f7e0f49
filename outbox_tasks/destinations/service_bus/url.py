"""The URLs of Azure Service Bus."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

from outbox_tasks.destinations.common import options
from outbox_tasks.settings.destination import Destination

OPTIONS: options.Options = {
    "sessions": options.FLAG,
    "development_emulator": options.FLAG,
    "ca_file": options.TEXT,
}
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/~-]{0,258}[A-Za-z0-9])?")
"""Of a queue or a topic, with the slashes of a hierarchy."""


@dataclass(frozen=True)
class Address:
    """What the URL says."""

    host: str
    port: int | None
    entity: str
    policy: str | None
    key: str | None = field(repr=False)
    sessions: bool
    emulator: bool
    ca_file: str | None

    @property
    def place(self) -> str:
        """The host, with the port if it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def connection_string(self) -> str:
        """For the client. Only this tells the client that it talks to the emulator."""
        emulated = ";UseDevelopmentEmulator=true" if self.emulator else ""
        return f"Endpoint=sb://{self.place};SharedAccessKeyName={self.policy};SharedAccessKey={self.key}{emulated}"


def address_of(destination: Destination) -> Address:
    """The URL in its parts. Raises `ConfigurationError`."""
    parts = urlsplit(destination.url)
    policy, key = (unquote(part) if part else None for part in (parts.username, parts.password))
    entity = unquote(parts.path.strip("/")) or destination.name
    try:
        port = parts.port
    except ValueError:  # if the key has a slash that is not encoded, what stands before it looks like a port
        port = 0
    options.check(
        destination,
        (
            parts.hostname and port != 0 and not parts.fragment,
            "it must be azureservicebus://POLICY:KEY@NAMESPACE.servicebus.windows.net/QUEUE_OR_TOPIC, "
            "with policy and key percent-encoded",
        ),
    )
    values = options.read(destination, OPTIONS)
    emulator = values.get("development_emulator", False)
    options.check(
        destination,
        (NAME.fullmatch(entity), "its path is not the name of a queue or a topic"),
        (
            (policy is None) == (key is None),
            "the name of a shared access policy and its key go together, as POLICY:KEY@",
        ),
        (
            not re.search(r"[\x00- ;]", f"{policy}{key}"),
            "the name of a shared access policy and its key have no spaces and no semicolons",
        ),
        (policy or not emulator, "the emulator needs a policy and a key: RootManageSharedAccessKey:SAS_KEY_VALUE@"),
        (
            policy or find_spec("azure.identity"),
            "it has no POLICY:KEY@, and azure-identity, which finds other credentials, is not installed: "
            "pip install azure-identity",
        ),
    )
    return Address(
        parts.hostname or "", port, entity, policy, key, values.get("sessions", False), emulator, values.get("ca_file")
    )

"""The URLs of Azure Service Bus."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.settings.destination import HIDDEN, Destination

FLAGS = ("sessions", "development_emulator")
OPTIONS = (*FLAGS, "ca_file")
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
        """For the client, which finds in it alone that it speaks to the emulator."""
        emulated = ";UseDevelopmentEmulator=true" if self.emulator else ""
        return f"Endpoint=sb://{self.place};SharedAccessKeyName={self.policy};SharedAccessKey={self.key}{emulated}"


def address_of(destination: Destination) -> Address:
    """The URL in its parts. Raises `ConfigurationError`."""
    parts = urlsplit(destination.url)
    query = parts.query.replace("+", "%2B")  # a plus is a plus, as in the name of a file
    options = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    policy, key = (unquote(part) if part else None for part in (parts.username, parts.password))
    entity = unquote(parts.path.strip("/")) or destination.name
    rule = _rule(parts, options, policy, key, entity)
    if rule is not None:
        raise ConfigurationError(setting=f"destinations.{destination.name}.url", value=HIDDEN, rule=rule)
    sessions, emulator = (options.get(flag) == "true" for flag in FLAGS)
    return Address(parts.hostname or "", parts.port, entity, policy, key, sessions, emulator, options.get("ca_file"))


def _rule(parts: SplitResult, options: dict[str, str], policy: str | None, key: str | None, entity: str) -> str | None:
    """The rule that they break."""
    try:
        port = parts.port
    except ValueError:  # where the key has a slash as it is, what is before that looks like one
        port = 0
    if not parts.hostname or port == 0 or parts.fragment:
        return (
            "it must be azureservicebus://POLICY:KEY@NAMESPACE.servicebus.windows.net/QUEUE_OR_TOPIC, "
            "with policy and key percent-encoded"
        )
    if not options.keys() <= set(OPTIONS):
        return f"the options of an azureservicebus:// URL are {', '.join(OPTIONS)}"
    if not {options.get(flag, "true") for flag in FLAGS} <= {"true", "false"}:
        return f"{' and '.join(FLAGS)} are true or false"
    if not NAME.fullmatch(entity):
        return "its path is not the name of a queue or a topic"
    if (policy is None) != (key is None):
        return "the name of a shared access policy and its key go together, as POLICY:KEY@"
    if ";" in f"{policy}{key}" or any(ord(char) <= 32 for char in f"{policy}{key}"):
        return "the name of a shared access policy and its key have no spaces and no semicolons"
    if options.get("development_emulator") == "true" and policy is None:
        return "the emulator needs a policy and a key: RootManageSharedAccessKey:SAS_KEY_VALUE@"
    if policy is None and find_spec("azure.identity") is None:
        return (
            "it has no POLICY:KEY@, and azure-identity, which finds other credentials, is not installed: "
            "pip install azure-identity"
        )
    return None

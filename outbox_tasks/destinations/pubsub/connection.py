"""Where a Pub/Sub destination is, and a channel to it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import google.auth
import grpc
from google.oauth2 import service_account
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from outbox_tasks.destinations.common import options
from outbox_tasks.destinations.common.grpc_status import CHANNEL
from outbox_tasks.errors import OutageError
from outbox_tasks.settings.destination import Destination

GOOGLE = "pubsub.googleapis.com:443"
EMULATOR = "PUBSUB_EMULATOR_HOST"
SCOPES = ("https://www.googleapis.com/auth/pubsub",)
ServiceAccount: Any = service_account.Credentials
"""Its types say nothing."""

PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]*")
"""Looser than Google's rule, because an emulator takes any name. Google itself refuses a name that breaks its rule."""
TOPIC = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)"
PORT = r":[0-9]{1,5}"

OPTIONS: options.Options = {
    "endpoint": options.matching(f"{HOST}(?:{PORT})?", "host or host:port, as in europe-west1-pubsub.googleapis.com"),
    "emulator": options.matching(f"{HOST}{PORT}", "host:port"),
    # Somebody may have put the key itself here. Then refuse it here, before anything looks for a file of that name.
    "credentials": options.matching(r"[^{\x00-\x1f\x7f]{1,1023}", "the path of a key file, not the key"),
    "ordering": options.one_of("key", "none"),
}


@dataclass(frozen=True)
class Address:
    """What the URL says."""

    topic: str
    """By its full name, `projects/…/topics/…`."""
    endpoint: str
    emulator: str | None
    credentials: str | None
    """A file."""
    ordered: bool
    """Whether keys become ordering keys."""


def address_of(destination: Destination) -> Address:
    """The URL in its parts. Raises `ConfigurationError`."""
    parts = urlsplit(destination.url)
    project, topic = unquote(parts.netloc), unquote(parts.path.removeprefix("/")) or destination.name
    values = options.read(destination, OPTIONS)
    options.check(
        destination,
        (
            PROJECT.fullmatch(project) and not parts.fragment,
            "it must be pubsub://project/topic, with credentials as a file: ?credentials=/path/to/key.json",
        ),
        (
            TOPIC.fullmatch(topic),
            "a topic's name has 3 to 255 letters, digits and - . _ ~ + %, begins with a letter, and not with goog",
        ),
        (
            "emulator" not in values or values.keys().isdisjoint({"endpoint", "credentials"}),
            "an emulator has neither endpoint nor credentials",
        ),
    )
    endpoint = values.get("endpoint", GOOGLE)
    return Address(
        topic=f"projects/{project}/topics/{topic}",
        endpoint=endpoint if re.search(f"{PORT}$", endpoint) else f"{endpoint}:443",
        emulator=values.get("emulator"),
        credentials=values.get("credentials"),
        ordered=values.get("ordering") != "none",
    )


def channel_to(address: Address) -> Any:
    """A channel. Finding credentials may take a while (files, commands, the machine's metadata server), and no option
    limits it. Raises `OutageError`."""
    # As in Google's own clients, the variable wins over `endpoint` and `credentials`, so that tests reach nobody.
    if emulator := address.emulator or os.environ.get(EMULATOR):
        return grpc.insecure_channel(emulator, CHANNEL)
    try:
        if address.credentials is None:
            credentials, _ = google.auth.default(scopes=SCOPES)
        else:
            credentials = ServiceAccount.from_service_account_file(address.credentials, scopes=SCOPES)
        if isinstance(credentials, ServiceAccount):
            # It signs its tokens itself, instead of asking another server for each of them.
            credentials = credentials.with_always_use_jwt_access(True)
        return PublisherGrpcTransport.create_channel(
            address.endpoint, credentials=credentials, scopes=SCOPES, options=CHANNEL
        )
    except OSError as error:  # without the file's name: it may be the key itself
        raise OutageError(f"the file of credentials can't be read: {error.strerror}", code="unauthorized") from None
    except Exception as error:  # the text may quote what was found instead of credentials
        raise OutageError(f"no usable credentials: {type(error).__name__}", code="unauthorized") from None

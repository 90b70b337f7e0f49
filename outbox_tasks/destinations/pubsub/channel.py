"""Connections to Pub/Sub, and the credentials for them."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, wait
from typing import Any

import google.auth
import grpc
from google.oauth2 import service_account
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from outbox_tasks.destinations.pubsub.address import Address
from outbox_tasks.errors import OutageError

EMULATOR = "PUBSUB_EMULATOR_HOST"
ServiceAccount: Any = service_account.Credentials
"""Its types say nothing."""
SCOPES = ("https://www.googleapis.com/auth/pubsub",)
OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # else a closed channel's connection may be used again
    ("grpc.max_receive_message_length", -1),
    ("grpc.service_config_disable_resolution", 1),  # no name server may switch on retries
]


class Opening:
    """A channel that is being made, in a thread. Finding credentials may take a while (files, commands, the machine's
    metadata server), and no option limits it. If a `publish` runs out of time, the next one gets the channel."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._made: Future[Any] = Future()
        threading.Thread(target=self._make, name="credentials for Pub/Sub", daemon=True).start()

    @property
    def done(self) -> bool:
        return self._made.done()

    def channel(self, deadline: float) -> Any:
        """Raises `OutageError`."""
        wait([self._made], timeout=max(0.0, deadline - time.monotonic()))
        if not self.done:
            raise OutageError("no credentials in time", code="timeout")
        return self._made.result()

    def _make(self) -> None:
        try:
            self._made.set_result(_open(self._address))
        except BaseException as error:
            self._made.set_exception(_explained(error))


def emulator_of(address: Address) -> str | None:
    """As in Google's own clients, the variable wins over `endpoint` and `credentials`, so that tests reach nobody."""
    return address.emulator or os.environ.get(EMULATOR) or None


def plaintext(host: str) -> Any:
    """A channel to an emulator."""
    return grpc.insecure_channel(host, OPTIONS)


def _open(address: Address) -> Any:
    if address.credentials is None:
        credentials, _ = google.auth.default(scopes=SCOPES)
    else:
        credentials = ServiceAccount.from_service_account_file(address.credentials, scopes=SCOPES)
    if isinstance(credentials, ServiceAccount):
        # It signs its tokens itself, instead of asking another server for each of them.
        credentials = credentials.with_always_use_jwt_access(True)
    return PublisherGrpcTransport.create_channel(
        address.endpoint, credentials=credentials, scopes=SCOPES, options=OPTIONS
    )


def _explained(error: BaseException) -> BaseException:
    if isinstance(error, OSError):
        # Without the file's name: it may be the key itself.
        return OutageError(f"the file of credentials can't be read: {error.strerror}", code="unauthorized")
    if isinstance(error, Exception):
        # The text may quote what was found instead of credentials.
        return OutageError(f"no usable credentials: {type(error).__name__}", code="unauthorized")
    return error

"""What the publisher uses of nats-py that its documentation does not promise. Seen on nats-py 2.16."""

from __future__ import annotations

from nats.aio.client import Client


def asks_for_tls(client: Client) -> bool:
    """Whether the server's greeting asks for TLS. Without that, the client would go on in plaintext."""
    return bool(client._server_info.get("tls_required"))

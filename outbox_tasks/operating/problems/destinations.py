"""The destinations: whether they have publishers, and whether their servers can be reached. Nothing is sent."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress

from outbox_tasks.destinations import load
from outbox_tasks.destinations.common.public_internet import is_public
from outbox_tasks.errors import ConfigurationError, PublisherNotInstalled, UnknownPublisher
from outbox_tasks.operating.problems.addresses import Address, addresses
from outbox_tasks.operating.problems.problem import Problem, error, note, warning
from outbox_tasks.operating.problems.site import ANSWER_SECONDS, Problems, Site, ask_all
from outbox_tasks.text import redacted

CERTIFICATE = "certificate"
"""How the reason begins if the server's certificate is not trusted."""


def publishers(site: Site) -> Problems:
    """Whether each destination has a publisher that understands its URL, and the client that it needs."""
    configured = site.settings.destinations
    if not configured:
        yield error(
            "no_destinations", f"No destination is configured: {site.settings.origin}.",
            "Applications can publish nothing: each message is refused. Workers and drain do not start.",
            "Add [destinations.<name>] with a url to outbox.toml, or set OUTBOX_CONFIG or OUTBOX_DESTINATIONS.",
        )  # fmt: skip
        return
    for name in configured:
        yield from _publisher(site, name)


def _publisher(site: Site, name: str) -> Problems:
    settings = site.settings
    if settings.broker_url is None and settings.destinations[name].takes_the_relays_broker:
        yield note(
            "destination_unchecked", f"{name} (celery://) was not checked: it sends to the relay's broker, and "
            "OUTBOX_BROKER_URL is not set.", "If an application's workers run the relay, they use its broker.",
            "Set OUTBOX_BROKER_URL; or ask through the application: celery -A <your app> outbox doctor", which=name,
        )  # fmt: skip
        return
    cause = "Workers do not start, or the messages of this destination are not sent."
    try:
        load(settings.destinations[name], settings.limits_of(name)).close()
    except PublisherNotInstalled as missing:
        yield error(
            "publisher_missing", f"{name} needs a client that is not installed here ({missing.missing}).", cause,
            f"pip install 'outbox-tasks[{missing.extra}]', here and wherever publish workers run", which=name,
        )  # fmt: skip
    except UnknownPublisher as unknown:
        yield error(
            "publisher_missing", f"{name} has the URL scheme {unknown.scheme!r}, but no publisher for it is installed.",
            cause, f"Correct the URL, or install the package that brings it. There are: {unknown.known}.", which=name,
        )  # fmt: skip
    except ConfigurationError as refused:
        yield error("destination_url", str(refused), cause, f"Correct the url of [destinations.{name}].", which=name)


def reachable(site: Site) -> Problems:
    """Whether a connection to each destination can be opened. All are tried at the same time."""
    by_name: dict[str, list[Address]] = {}
    for name, destination in site.settings.destinations.items():
        with suppress(ValueError):  # the other check says so
            by_name[name] = list(addresses(destination, site.settings.broker_url))
    answers = connection_errors({address for found in by_name.values() for address in found})
    for name, found in by_name.items():
        failed = {address: why for address in found if (why := answers[address]) is not None}
        where = redacted(site.settings.destinations[name].url)
        if not found and site.settings.destinations[name].takes_the_relays_broker:
            continue  # the other check reports it
        if not found:
            yield _unchecked(name, where)
        elif len(failed) == len(found):
            yield _unreachable(name, where, failed)
        elif failed:
            some = ", ".join(f"{address}: {why}" for address, why in failed.items())
            yield warning(
                "destination_partly", f"{name}: {len(failed)} of its {len(found)} servers can't be reached ({some}).",
                "The others do its work.", "Bring them back, or take them out of the URL.", which=name,
            )  # fmt: skip


def _unchecked(name: str, where: str) -> Problem:
    return note(
        "destination_unchecked",
        f"{name} ({where}) was not checked: its URL names no host and port.",
        "The doctor does not know whether it can be reached.",
        "outbox-tasks status shows whether sends to it fail.",
        which=name,
    )


def _unreachable(name: str, where: str, failed: Mapping[Address, str]) -> Problem:
    some = ", ".join(f"{address}: {why}" for address, why in failed.items())
    if all(why.startswith(CERTIFICATE) for why in failed.values()):
        return error(
            "destination_certificate", f"{name} ({where}) answers with a certificate that is not trusted: {some}.",
            "Sends to it fail, and its messages wait.",
            "Renew the certificate, or have this host trust its issuer (the destination's option for that, or the "
            "system's certificates).", which=name,
        )  # fmt: skip
    return error(
        "destination_away", f"{name} ({where}) can't be reached from here: {some}.",
        "If the publish workers can't reach it either, its messages wait, and spend no attempts.",
        "Start it, or correct its url. See that its name resolves, and that firewalls let this host out.", which=name,
    )  # fmt: skip


def connection_errors(wanted: Iterable[Address], timeout: float = ANSWER_SECONDS) -> Mapping[Address, str | None]:
    """Why a connection to each address can't be opened; None: it can."""
    silent = "its name could not be looked up in time"
    return ask_all(wanted, lambda address: _connection_error(address, timeout), silent, timeout)


def _connection_error(address: Address, timeout: float) -> str | None:
    try:
        if address.public and (why := _not_public(address)):
            return why
        with socket.create_connection((address.host, address.port), timeout=timeout) as plain:
            if address.tls:
                with _context(address).wrap_socket(plain, server_hostname=address.host):
                    pass
    except ssl.SSLCertVerificationError as refused:
        return f"{CERTIFICATE} {refused.verify_message}"
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except (OSError, UnicodeError) as failed:
        return getattr(failed, "strerror", None) or str(failed)
    return None


def _not_public(address: Address) -> str | None:
    """Why its publisher would refuse the address, before it connects."""
    found = {str(one[4][0]) for one in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)}
    if any(is_public(one) for one in found):
        return None
    return f"it is in a private network ({', '.join(sorted(found))}), and outbox_private=allow is not set"


def _context(address: Address) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=address.trusted)
    if not address.verified:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context

"""What people and logs may see: no secret of a URL, and nothing that a terminal would obey."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from urllib.parse import unquote

STARS = "***"

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+?(?=[.,;:!?'\")>\]}]*(?:\s|$))")

WEB = ("http", "https")
"""Schemes whose path is hidden: that of a webhook is its password."""

CONTAINERS = ("abfs", "abfss")
"""Schemes where what stands before the @ is a part of the place: container@account."""

SECRET_OPTION = re.compile(r"(?i)(?!.*file$).*(?:pass|pwd|token|secret|key|bearer|credential|sig)")
"""Options of a URL whose value is hidden wherever it turns up."""

ASSIGNED = re.compile(r"(?i)\b(password|passwd|pwd|secret|token|api_?key|sharedaccesskey)=(?!\*)[^\s&;,]+")

SHORTEST = 4
"""Characters of what is looked for in a text: less is no secret, and is part of many words."""


def redacted(url: str) -> str:
    """`url`, or several with `;` between them, as everybody may see it: without passwords and queries, without a lone
    user, which is a token, and without the path of a webhook."""
    return ";".join(_redacted(part) for part in re.split(r";(?=[a-z+]+://)", url))


def without_secrets(text: str, *urls: str) -> str:
    """`text`, such as a client's error, with each URL in it redacted, and without the secrets of these URLs."""
    secrets = {secret for url in urls for secret in _secrets(url) if len(secret) >= SHORTEST}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, STARS)
    if "://" in text:
        text = URL.sub(lambda found: redacted(found[0]), text)
    return ASSIGNED.sub(rf"\1={STARS}", text) if "=" in text else text


def logger(name: str) -> logging.Logger:
    """A logger for errors of clients, which may quote the URL that they were given."""
    log = logging.getLogger(name)
    log.addFilter(_clean)
    return log


def _clean(record: logging.LogRecord) -> bool:
    # Formatters take the text of an exception that is there already.
    if record.exc_info and record.exc_text is None:
        record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
    message = record.getMessage()
    if (clean := without_secrets(message)) != message:
        record.msg, record.args = clean, None
    return True


def _redacted(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if rest.startswith("?"):
        return f"{scheme}{separator}"
    login, at, place = rest.rpartition("@")
    user, colon, password = login.partition(":")
    place = re.split(r"[?#]", place)[0]
    if scheme in WEB:
        host, slash, path = place.partition("/")
        place = f"{host}{slash}{path and '…'}"
    if scheme in CONTAINERS and not colon:
        return f"{scheme}{separator}{login}{at}{place}"
    # A user alone is a token. Where there are several logins, of several hosts, none is shown.
    known = (password or (colon and not user)) and not re.search(r"[@,/]", user)
    shown = f"{user}:{STARS}" if known else STARS
    return f"{scheme}{separator}{shown + at if at else ''}{place}"


def _secrets(url: str) -> Iterator[str]:
    """The parts of a URL that nobody may see, as they are written and as they are meant."""
    scheme, _, rest = url.partition("://")
    login, _, place = rest.rpartition("@")
    *others, last = login.split(",")  # before each host of several, or before the last one for all
    for one in (login, last, *(other.rpartition("@")[0] for other in others)):
        user, colon, password = one.partition(":")
        found = password if colon else user
        if found and scheme not in CONTAINERS:
            yield from (found, unquote(found))
    query = rest.partition("?")[2]
    if scheme in WEB:
        yield from (f"/{place.partition('?')[0].partition('/')[2]}", query)
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if "://" in unquote(value):
            yield from _secrets(unquote(value))
        elif SECRET_OPTION.match(name):
            yield from (value, unquote(value))

"""Texts that others have written: what the database can store, and what people and logs may see. No secrets in them."""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from urllib.parse import unquote

STARS = "***"

URL = re.compile(r"(?<![A-Za-z0-9+.-])([0-9+.-]*)([A-Za-z][A-Za-z0-9+.-]*://\S)(\S*)")
"""The characters before a URL, and the URL. Each part fits in one way only, so that no text of others takes long. That
is true of every pattern here."""

SIGNS_AFTER_A_URL = ".,;:!?'\")>]}"
"""They end the sentence, and are no part of the URL."""

WEB = ("http", "https")
"""Schemes whose path is hidden. The path of a webhook is its password."""

CONTAINERS = ("abfs", "abfss")
"""Schemes with container@account, where the part before the @ is no login."""

SECRET_OPTION = re.compile(r"(?i)(?!.*file$).*(?:pass|pwd|token|secret|key|bearer|credential|sig)")
"""Options of a URL whose value is hidden wherever it occurs."""

ASSIGNED = re.compile(r"(?i)\b(password|passwd|pwd|secret|token|api_?key|sharedaccesskey)=(?!\*)[^\s&;,]+")

SECRET_CHARACTERS = 4
"""Shorter values are not looked for in a text: they are no secrets, and parts of many words."""


def is_text(value: object) -> bool:
    """Whether PostgreSQL can store it as text: no NUL, and no half of a surrogate pair."""
    return isinstance(value, str) and "\0" not in value and is_encodable(value)


def is_encodable(value: str) -> bool:
    """Whether it can be written as UTF-8: half of a surrogate pair can't."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def short(value: object) -> object:
    """A value as an error shows it: at most 40 characters."""
    return value[:40] + "…" if isinstance(value, str) and len(value) > 40 else value


def storable(text: str | None) -> str | None:
    """The text without NUL and halves of surrogate pairs, which PostgreSQL can't store."""
    return text and text.replace("\0", "\\0").encode("utf-8", "replace").decode("utf-8")


def said(error: object, say: Callable[[object], str] = str) -> str:
    """What an exception of others says. It may say nothing, or fail to."""
    try:
        return say(error) or repr(error)
    except Exception:  # its own code raises, and its type says something, too
        return type(error).__name__


def span(seconds: float) -> str:
    """Seconds as people say them: 90 s, 3 min, 5 h, 4 d."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def ago(at: datetime) -> str:
    """How long ago something was; for the future, "in" how long it will be."""
    seconds = (datetime.now(UTC) - at).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def number(count: float, *, estimated: bool = False) -> str:
    """A number that is read at a glance: 1,234 or 12k or 3.4M."""
    about = "~" if estimated else ""
    if count >= 999_500:
        return f"{about}{count / 1e6:.1f}M"
    if count >= (9_950 if estimated else 99_950):
        return f"{about}{count / 1e3:.0f}k"
    return f"{about}{count:,.1f}" if 0 < count < 9.95 and count != int(count) else f"{about}{count:,.0f}"


def moment(at: datetime) -> str:
    """A time as people are told it, everywhere: date and time, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def many(count: int, noun: str, shown: str | None = None) -> str:
    """A number of things in words: 1 message, 2 messages. `shown` replaces the number."""
    return f"{shown or f'{count:,}'} {noun}{'' if count == 1 else 's'}"


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def shell_line(*words: str) -> str:
    """A command of ours, as bash and zsh take it. Control characters are codes, since a terminal would obey them when
    they are pasted."""
    return " ".join(map(_quoted, ("outbox-tasks", *words)))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if c.isprintable() else _code(c) for c in plain) + "'"


def _code(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 128 else f"\\U{ord(character):08x}"


def printable(text: str) -> str:
    """The text without characters that would move the cursor, colour the screen or turn the line round."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """The same in one line."""
    return " ".join(printable(text).split())


def json_line(value: object) -> str:
    """As JSON in one line. Line breaks and control characters are codes, so no terminal obeys them."""
    line = json.dumps(value, ensure_ascii=False, default=str)
    return line if line.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def redacted(url: str) -> str:
    """`url`, or several with `;` between them, without passwords, queries, the path of a webhook, and a user without a
    password, which is a token."""
    return ";".join(_redacted(part) for part in re.split(r";(?=[a-z+]+://)", url))


def without_login(url: str) -> str:
    """The URL of a storage without user and password, and without a slash at its end."""
    scheme, _, rest = url.partition("://")
    login, _, place = rest.rpartition("@")
    if scheme in CONTAINERS and ":" not in login:
        return url.rstrip("/")
    return f"{scheme}://{place.rstrip('/')}"


def without_secrets(text: str, *urls: str, most: int | None = None) -> str:
    """`text`, such as a client's error, with all its URLs redacted, and without the secrets of `urls`. No more than its
    first `most` characters."""
    secrets = {secret for url in urls for secret in _secrets(url) if len(secret) >= SECRET_CHARACTERS}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, STARS)
    if most is not None:
        text = _cut(text, 4 * most)
    if "://" in text:
        text = URL.sub(_url, text)
    if "=" in text:
        text = ASSIGNED.sub(rf"\1={STARS}", text)
    return text[:most]


def _cut(text: str, most: int) -> str:
    """Its beginning. A URL that the cut goes through could not be recognised, so it is left out."""
    if len(text) <= most:
        return text
    text = text[:most]
    start = max(text.rfind(space) for space in " \n\t\r") + 1
    scheme, separator, _ = text[start:].partition("://")
    return text[:start] + scheme + separator


def logger(name: str) -> logging.Logger:
    """A logger for errors of clients, which may quote a URL with its secrets."""
    log = logging.getLogger(name)
    log.addFilter(_clean)
    return log


def _clean(record: logging.LogRecord) -> bool:
    # Formatters use this text of the exception if it is set.
    if record.exc_info and record.exc_text is None:
        record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
    try:
        message = record.getMessage()
    except Exception:  # of an argument that can't say what it is: logging itself reports that, and goes on
        return True
    if (clean := without_secrets(message)) != message:
        record.msg, record.args = clean, None
    return True


def _url(match: re.Match[str]) -> str:
    rest = match[3].rstrip(SIGNS_AFTER_A_URL)
    return f"{match[1]}{redacted(match[2] + rest)}{match[3][len(rest) :]}"


def _redacted(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator and "@" in url:  # as postgresql:secret@host, where the slashes are forgotten
        return STARS + url[url.rindex("@") :].partition("?")[0]
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
    # A user alone is a token. If there are several logins, for several hosts, none is shown.
    known = (password or (colon and not user)) and not re.search(r"[@,/]", user)
    shown = f"{user}:{STARS}" if known else STARS
    return f"{scheme}{separator}{shown + at if at else ''}{place}"


def _secrets(url: str) -> Iterator[str]:
    """The secret parts of a URL, as they are written and decoded."""
    scheme, _, rest = url.partition("://")
    login, _, place = rest.rpartition("@")
    *others, last = login.split(",")  # before each host of several, or before the last one for all
    for part in (login, last, *(other.rpartition("@")[0] for other in others)):
        user, colon, password = part.partition(":")
        secret = password if colon else user
        if secret and scheme not in CONTAINERS:
            yield from (secret, unquote(secret))
            # Some clients take the end of such a password for the host, or its beginning for the port, and quote it.
            yield from re.split(r"[@/?#:;]", secret)
    query = rest.partition("?")[2]
    if scheme in WEB:
        yield from (f"/{place.partition('?')[0].partition('/')[2]}", query)
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if "://" in unquote(value):
            yield from _secrets(unquote(value))
        elif SECRET_OPTION.match(name):
            yield from (value, unquote(value))

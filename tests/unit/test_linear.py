"""Texts of others never take long: the time that a pattern takes grows no faster than the text."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from starlette.routing import compile_path

from outbox_tasks.destinations.aws.answers import SAYS_TOO_LARGE, SAYS_UNROUTABLE
from outbox_tasks.destinations.grpc.publisher import TOO_LARGE
from outbox_tasks.destinations.http.publisher import RESERVED
from outbox_tasks.destinations.kombu.common import TEXT
from outbox_tasks.destinations.nats.publisher import SUBJECT
from outbox_tasks.destinations.pubsub.publisher import NAME, REASON, SIZE
from outbox_tasks.destinations.service_bus.answers import SESSIONS
from outbox_tasks.django.results import _path
from outbox_tasks.model import Outcome
from outbox_tasks.relay.retry import MAX_ERROR
from outbox_tasks.settings import Settings
from outbox_tasks.text import one_line, printable, redacted, without_secrets
from outbox_tasks.web.routes import ROUTES
from outbox_tasks.wire.celery_message import CELERYS_OWN
from tests.unit.test_retry import judge

LENGTH = 50_000
"""Characters. A pattern whose time grows with their square takes ten minutes."""

ENOUGH = 30.0
"""Seconds of the processor's time. What is linear takes some hundredths."""

PARTS = (
    ".", ",", "a", "a.", "a-1+", ";", "a;", "://", "a://", "a:// ", "a://;", "a://.;", "://@", "a:@", "?", "a=", " ",
    "\n", "password=", "token= ", "invalid_", "invalid [", "unsupported_a9 ", "message length ", "parameter TopicAr",
    "text/", "a/b+", "application/+json", "; charset=", "x.pidbox", "celeryev", "/payload", "/messages/", "ValueError",
    "a.ValueError", "\x1b",
)  # fmt: skip

Call = Callable[[str], object]
CALLS: dict[str, Call] = {
    "redacted": redacted,
    "without_secrets": without_secrets,
    "one_line": one_line,
    "printable": printable,
    "routes": lambda text: [compile_path(route.pattern)[0].match(f"/{text}") for route in ROUTES],
    "traceback": lambda text: _path("ValueError", text),
    **{f"{pattern.pattern:.20}": pattern.fullmatch for pattern in (RESERVED, TEXT, SUBJECT, CELERYS_OWN)},
    **{
        f"{pattern.pattern:.20}": pattern.search
        for pattern in (SAYS_TOO_LARGE, SAYS_UNROUTABLE, TOO_LARGE, SIZE, NAME, REASON, SESSIONS)
    },
}  # fmt: skip


@contextmanager
def soon() -> Iterator[None]:
    """The processor's time for what is in it has a bound. A search looks for signals now and then."""

    def late(_: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it has taken {ENOUGH:g} s of the processor's time")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, ENOUGH)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_long_text_of_others_takes_no_long_time(call: Call) -> None:
    for part in PARTS:
        long = part * (LENGTH // len(part))
        for text in (long, f"a://{long}", f"{long} a://b", f"text/{long}\x00"):
            with soon():
                call(text)


def test_an_error_is_cut_before_its_urls_are_searched_and_none_shows_half() -> None:
    settings = Settings(destinations={"orders": {"url": "grpc://h:1?token=hunter2hunter"}})

    def said(text: str) -> str:
        with soon():
            verdict = judge(settings, 1, Outcome.retry("refused", text))
        assert verdict.error is not None
        return verdict.error

    assert said("a://" + "." * LENGTH) == "a://"
    assert said("." * LENGTH) == "." * MAX_ERROR
    for cut in range(1976, 1993):  # somewhere in the login of the last URL
        shown = said(f"https://h/{'x' * (cut - 12)} {'redis://ada:secretsecret@h '}" + "." * LENGTH)
        assert shown.startswith("https://h/… redis://")
        assert "secret" not in shown

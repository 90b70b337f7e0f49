"""The page without a database: who may come in, and what it says when it can't answer."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from outbox_tasks.errors import ConfigurationError, WebClosed
from outbox_tasks.web import Page, Person, Role
from outbox_tasks.web.http import Request, Response
from tests.conftest import MakeSettings

PASSWORD = "correct horse battery"
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"

ACTOR = Person("anna", Role.ACT)
START = Request("GET", "/")


@pytest.fixture
def page(settings: MakeSettings) -> Iterator[Page]:
    page = Page(settings(database_url=NOWHERE, web_users={"anna": {"password": PASSWORD, "role": "act"}}))
    yield page
    page.close()


def signed(name: str = "anna", password: str = PASSWORD, **more: Any) -> Request:
    """A request to the start page with a name and a password."""
    login = base64.b64encode(f"{name}:{password}".encode()).decode()
    return replace(START, headers={"authorization": f"Basic {login}"}, **more)


def header(response: Response, name: str) -> str:
    [value] = [value for header, value in response.headers if header == name]
    return value


def test_without_anybody_who_could_sign_in_there_is_no_page(settings: MakeSettings) -> None:
    with pytest.raises(WebClosed, match="nobody could sign in"):
        Page(settings())


def test_a_short_password_is_refused_and_not_shown(settings: MakeSettings) -> None:
    with pytest.raises(ConfigurationError, match="at least 12 characters") as refused:
        settings(web_users={"anna": {"password": "hunter2"}})
    assert "hunter2" not in str(refused.value)
    assert PASSWORD not in repr(settings(web_users={"anna": {"password": PASSWORD}}))


def test_nobody_sees_anything_without_the_password(page: Page) -> None:
    for request in (START, signed(password="correct horse"), signed(name="bob"), signed(name="")):
        refused = page.handle(request)
        assert refused.status == 401
        assert header(refused, "WWW-Authenticate").startswith("Basic ")
        assert b"orders" not in refused.body


def test_a_database_that_is_gone_is_said_on_the_page(page: Page) -> None:
    trouble = page.handle(signed())
    assert trouble.status == 503
    assert b"can&#39;t serve the outbox" in trouble.body
    assert b'hx-get="/"' in trouble.body  # so that it recovers by itself


def test_every_answer_says_what_the_browser_may_load(page: Page) -> None:
    for request in (START, signed(), replace(START, path="/static/style.css"), replace(START, path="/no/such")):
        answer = page.handle(request)
        assert header(answer, "Content-Security-Policy").startswith("default-src 'none'; script-src 'self'")
        assert header(answer, "X-Content-Type-Options") == "nosniff"

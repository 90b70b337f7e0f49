"""Somebody who looks at the page, without a server."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

from outbox_tasks.web import Page, Person, Role
from outbox_tasks.web.http import Request, Response


class Browser:
    """Somebody who visits a page."""

    def __init__(self, page: Page, role: Role = Role.ACT) -> None:
        self.page, self.person = page, Person("anna", role)
        self.token = "t" * 43
        self.headers = {"cookie": f"outbox_csrf={self.token}"}

    def request(self, method: str, path: str, **more: Any) -> Request:
        return Request(method, path, headers=self.headers, **more)

    def get(self, path: str, **query: str) -> Response:
        asked = {name: [value] for name, value in query.items()}
        return self.page.handle(self.request("GET", path, query=asked), self.person)

    def post(self, path: str, **form: str) -> Response:
        sent = {name: [value] for name, value in {"csrf": self.token, **form}.items()}
        return self.page.handle(self.request("POST", path, form=sent), self.person)

    def read(self, path: str, **query: str) -> str:
        """The page's HTML."""
        answer = self.get(path, **query)
        assert answer.status == 200, answer.body.decode()
        return answer.body.decode()

    def text(self, path: str, **query: str) -> str:
        """The words on the page."""
        return words(self.read(path, **query))


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


Visit = Callable[..., Browser]
"""Makes browsers, with a role and settings of the page."""

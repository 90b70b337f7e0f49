"""Somebody who looks at the page, without a server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import httpx

from outbox_tasks.web import Page, Person, Role

OWN = {"Sec-Fetch-Site": "same-origin"}
"""What a browser says of a form that the page itself has shown."""


class Browser:
    """Somebody who visits a page. It keeps cookies."""

    def __init__(self, page: Page, role: Role = Role.ACT, name: str = "anna", **options: Any) -> None:
        self.page = page
        self.cookies = httpx.Cookies()
        self.headers = {"X-Person": f"{name} {role.name}"}
        self._transport = httpx.ASGITransport(page.asgi, raise_app_exceptions=False, **options)

    def ask(self, method: str, path: str, query: Any = (), headers: Any = (), **more: Any) -> httpx.Response:
        """The answer to a request. `path` is not quoted yet. As in the page's links, no name is the folder above."""
        quoted = re.sub(r"/(?=\.{1,2}(/|$))", "%2F", quote(path))
        url = httpx.URL("http://page.example/", raw_path=quoted.encode())
        if query:
            url = url.copy_with(query=urlencode(query, doseq=True).encode())

        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, cookies=self.cookies) as client:
                answer = await client.request(method, url, headers={**self.headers, **dict(headers)}, **more)
                self.cookies = client.cookies
                return answer

        return asyncio.run(send())

    def get(self, path: str, **query: str) -> httpx.Response:
        return self.ask("GET", path, query)

    def post(self, path: str, /, **form: Any) -> httpx.Response:
        headers = {**OWN, "Content-Type": "application/x-www-form-urlencoded"}  # also of an empty form
        return self.ask("POST", path, headers=headers, data=form)

    def read(self, path: str, **query: str) -> str:
        """The page's HTML."""
        answer = self.get(path, **query)
        assert answer.status_code == 200, answer.text
        return answer.text

    def text(self, path: str, **query: str) -> str:
        """The words on the page."""
        return words(self.read(path, **query))


def visitor(scope: Any) -> Person | None:
    """Whom a `Browser` says that it is, by ASGI and WSGI."""
    said = scope.get("HTTP_X_PERSON") or dict(scope["headers"]).get(b"x-person", b"").decode()
    name, _, role = said.rpartition(" ")
    return Person(name, Role[role]) if name else None


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def walk(browser: Browser, most: int = 300) -> Iterator[tuple[str, httpx.Response]]:
    """All pages that links lead to, from the start page on; links of the first `most` pages count."""
    left, seen = ["/", "/messages"], set[str]()
    while left:
        if (link := left.pop(0)) in seen:
            continue
        seen.add(link)
        place = urlsplit(link)
        answer = browser.ask("GET", unquote(place.path), parse_qs(place.query, keep_blank_values=True))
        assert answer.status_code == 200, (link, answer.text)
        yield link, answer
        if len(seen) < most:
            left += [unescape(found) for found in re.findall('href="(/[^"#]*)"', answer.text)]


Visit = Callable[..., Browser]
"""Makes browsers, with a role and settings of the page."""

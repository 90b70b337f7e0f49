"""A browser without a window: Chromium, driven through its own DevTools protocol.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child
from tests.conftest import eventually

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""The browser's path, or None."""

SIZE = (1500, 860)


class Browser:
    """One page of it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._numbers = iter(range(1, 1_000_000))
        self._page: WebSocketClientConnection = self._loop.run_until_complete(self._connect())
        self.call("Page.enable")
        self.call("Network.enable")

    async def _connect(self) -> WebSocketClientConnection:
        # It accepts no connection that has an origin; a request without one is a program's.
        return await websocket_connect(self._address, max_message_size=100_000_000)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; returns its result."""
        return self._loop.run_until_complete(self._call(method, parameters))

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._page.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            text = await asyncio.wait_for(self._page.read_message(), 60)
            assert text is not None, "the browser is gone"
            answer: dict[str, Any] = json.loads(text)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def log_in(self, user: str, password: str) -> None:
        """With HTTP's basic authentication, from now on."""
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {login}"})

    def log_out(self) -> None:
        """Forget the password, and all that was seen with it."""
        self.call("Network.setExtraHTTPHeaders", headers={})
        self.call("Network.clearBrowserCache")
        self.open("about:blank")

    def open(self, url: str) -> None:
        """Go there, and wait for the page."""
        self.call("Page.navigate", url=url)
        eventually(lambda: self.run("document.readyState") == "complete" and self.run("location.href") == url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def text(self) -> str:
        """The text of the page."""
        return str(self.run("document.body.innerText"))

    def table(self, selector: str) -> list[dict[str, str]]:
        """The rows of a table, by the titles of its columns; none as long as there is no such table."""
        script = f"""(() => {{
            const table = document.querySelector({selector!r});
            if (!table?.tHead) return [];
            const titles = [...table.tHead.rows[0].cells].map(cell => cell.textContent.trim());
            return [...table.tBodies[0].rows].map(row => Object.fromEntries(
                [...row.cells].map((cell, n) => [titles[n], cell.innerText.trim()])));
        }})()"""
        found: list[dict[str, str]] = self.run(script)
        return found

    def screenshot(self, path: Path) -> None:
        """A screenshot, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        """Close the connection; the caller ends the process."""
        self._loop.run_until_complete(self._leave())
        self._loop.close()

    async def _leave(self) -> None:
        """In its loop, without which the page could not say goodbye."""
        self._page.close()


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in `directory`."""
    assert CHROMIUM is not None
    argv = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--hide-scrollbars", f"--window-size={SIZE[0]},{SIZE[1]}", f"--user-data-dir={directory}",
        "--remote-debugging-port=0", "about:blank",
    ]  # fmt: skip
    with Child.start("chromium", argv, env={"HOME": str(directory)}, cwd=directory) as child:
        told = directory / "DevToolsActivePort"
        eventually(lambda: (told.exists() and told.read_text().strip()) or not child.alive, 60)
        assert child.alive, child.tail()
        port = told.read_text().split()[0]
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/json/list", timeout=60) as answer:
            [page] = [target for target in json.load(answer) if target["type"] == "page"]
        made = Browser(page["webSocketDebuggerUrl"])
        yield made
        made.close()

"""The command of the page."""

from __future__ import annotations

from typing import ClassVar

from outbox_tasks.satellites import Command, Satellite


class Web(Satellite):
    commands: ClassVar = {
        "web": Command("See what is going on", "Show the page in a browser, until Ctrl-C.", "outbox_tasks.web.command")
    }

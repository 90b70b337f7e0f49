"""`Page`: what an application mounts."""

from __future__ import annotations

from outbox_tasks.errors import WebClosed
from outbox_tasks.outbox import Outbox
from outbox_tasks.settings import Settings
from outbox_tasks.web.answers import Answers, Who
from outbox_tasks.web.mount import Asgi, Wsgi


class Page:
    """The page over one outbox. Mount `asgi` or `wsgi`.

    `who` says who visits: it is given what the server gives (the ASGI scope or the WSGI environ), and returns a
    `Person`, or None for nobody. For `asgi` it may be asynchronous. Without `who`, people sign in with a name and a
    password of the setting `web_users`. With `read_only`, nobody can change anything.
    """

    def __init__(
        self, outbox: Outbox | Settings | None = None, *, who: Who | None = None, read_only: bool = False
    ) -> None:
        given = outbox if isinstance(outbox, Outbox) else None
        self.settings = outbox.settings if isinstance(outbox, Outbox) else outbox or Settings()
        if who is None and not self.settings.web_users:
            raise WebClosed
        self._answers = Answers(self.settings, given, who, read_only)
        self.asgi = Asgi(self._answers.app, self.settings)
        self.wsgi = Wsgi(self.asgi, self.settings, who)

    def close(self) -> None:
        """Close this process's connections, and end its threads."""
        self.wsgi.close()
        self._answers.close()

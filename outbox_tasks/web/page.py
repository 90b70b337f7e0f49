"""`Page`: what an application mounts."""

from __future__ import annotations

from outbox_tasks.outbox import Outbox
from outbox_tasks.settings import Settings
from outbox_tasks.web.answers import Answers, Who
from outbox_tasks.web.asgi import Asgi
from outbox_tasks.web.wsgi import Wsgi


class Page(Answers):
    """The page over one outbox. Mount `asgi` or `wsgi`.

    `who` says who visits: it is given what the server gives (the ASGI scope, the WSGI environ or Django's request),
    and returns a `Person`, or None for nobody. Without it, people sign in with a password of the setting `web_users`.
    With `read_only`, nobody can change anything.
    """

    def __init__(
        self, outbox: Outbox | Settings | None = None, *, who: Who | None = None, read_only: bool = False
    ) -> None:
        super().__init__(outbox, who, read_only)
        self.wsgi, self.asgi = Wsgi(self), Asgi(self)

    def close(self) -> None:
        """Close this process's connections, and end its threads."""
        self.asgi.close()
        super().close()

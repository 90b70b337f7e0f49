"""A connection that does not wait for ever."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg


class NoAnswer(psycopg.OperationalError):
    """The database did not answer in time."""


class Patient(psycopg.Connection[Any]):
    """A connection that waits for an answer only for a limited time.

    A server that hangs, or a network that drops everything, still accepts what is sent. Then no timeout of the server
    or of TCP ends the wait for the answer.
    """

    patience: float | None = None
    """Seconds; None: for ever."""

    def wait(self, gen: Any, *arguments: Any, **keywords: Any) -> Any:
        """Run a conversation with the server: see `psycopg.Connection.wait`."""
        try:
            return super().wait(self._in_time(gen), *arguments, **keywords)
        except psycopg.Error:
            raise
        except BaseException:
            # For example a time limit. The next user of this connection would get the answer to our question.
            self.close()
            raise

    def _in_time(self, conversation: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        began, patience = time.monotonic(), self.patience
        try:
            wanted = next(conversation)
            while True:
                ready = yield wanted
                # If the answer is there, read it, even if we come late.
                if not ready and patience is not None and time.monotonic() - began > patience:
                    self.close()
                    raise NoAnswer(f"no answer within {patience:g} s; the connection is given up")
                wanted = conversation.send(ready)
        except StopIteration as end:
            return end.value

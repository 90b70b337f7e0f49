"""What the send of leased messages asks the database for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import DatabaseTooSlow
from outbox_tasks.model import LeasedMessage, Step, Verdict
from outbox_tasks.relay.store import processes
from outbox_tasks.relay.store.takes import NO_PAYLOAD, leased_message
from outbox_tasks.text import storable


class Leases(Database):
    """The verbs of begin and settle."""

    def begin(self, token: str, destination: str) -> LeasedMessage | None:
        """Let the send of a single begin, if its lease is still there; count an attempt, and return the message. If the
        database can't return its payload in time, it gets more time, and then the message comes without payload."""
        largest = self.settings.destinations[destination].largest
        parameters = {
            "token": token,
            "destination": destination,
            "holder": processes.holder(),
            "hold": self.settings.send_lease,
        }
        for limit in (None, self.settings.unhurried):
            with suppress(DatabaseTooSlow):
                return self._one_begun(limit, **parameters, largest=largest)
        return self._one_begun(None, **parameters, largest=NO_PAYLOAD)

    def _one_begun(self, limit: float | None, **parameters: Any) -> LeasedMessage | None:
        rows = self.ask("deliver/begin.sql", limit, **parameters)
        return leased_message(rows[0]) if rows else None

    def give_back(self, tokens: Iterable[str], wait: float = 0.0) -> None:
        """Give back leases whose sends have not begun. Their messages are due again after `wait` seconds."""
        self.ask("deliver/give_back.sql", tokens=list(tokens), wait=wait)

    def settle(
        self, token: str, destination: str, verdicts: Sequence[Verdict], *, unhurried: bool = False
    ) -> tuple[set[int], bool]:
        """Record the verdicts on all messages of a lease. Returns the numbers that were still ours, and whether more
        messages of their keys are due."""
        limit = self.settings.unhurried if unhurried else None
        fence = {"token": token, "destination": destination}
        if all(verdict.step is Step.SENT for verdict in verdicts):
            keys = list({verdict.message.key for verdict in verdicts} - {None})
            if rows := self.ask("deliver/sent.sql", limit, **fence, keys=keys, count=len(verdicts)):
                return {verdict.message.seq for verdict in verdicts}, rows[0].more
        rows = self.ask(
            "deliver/settle.sql",
            limit,
            **fence,
            blocks=self.settings.dead_blocks(destination),
            spared_outages=self.settings.breaker_failures,
            verdict=json.dumps([self._row(verdict) for verdict in verdicts]),
        )
        return {row.seq for row in rows}, any(row.more for row in rows)

    def _row(self, verdict: Verdict) -> dict[str, Any]:
        """A row of `verdict`: see deliver/settle.sql."""
        message = verdict.message
        row: dict[str, Any] = {
            "seq": message.seq,
            "step": verdict.step.value,
            "attempts": message.attempts if verdict.sent else message.attempts - 1,
            "wait": verdict.wait,
            "code": storable(verdict.code),
            "error": storable(verdict.error),
        }
        if verdict.step is Step.RETRY:
            row |= {"token": verdict.token, "wait": verdict.wait + self.settings.queue_lease}
        return row

    def sent_in_vain(self, messages: Sequence[LeasedMessage], *, tried_before: bool) -> None:
        """Note on messages that were sent, and whose lease was lost before their settle, that they may be delivered
        twice. `tried_before`: an earlier try of this settle, whose answer did not arrive, may have settled them: those
        get no note."""
        rows = json.dumps([{"seq": message.seq, "attempt": message.attempts} for message in messages])
        self.ask("deliver/sent_in_vain.sql", message=rows, holder=processes.holder(), tried_before=tried_before)

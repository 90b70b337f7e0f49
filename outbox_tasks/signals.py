"""Signals that an application can listen to, as with Celery's own. The process that finds something out sends them. An
exception of a listener is logged and stops nothing.

from outbox_tasks.signals import dead_letter

@dead_letter.connect
def tell(sender, destination, message_id, event_type, code, **_): ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from celery.utils import dispatch

Receiver = TypeVar("Receiver", bound=Callable[..., Any])


class Signal(dispatch.Signal):  # type: ignore[misc]
    """Celery's, with types: a decorated function keeps its own."""

    @overload
    def connect(self, receiver: Receiver, sender: Any = None, **options: Any) -> Receiver: ...
    @overload
    def connect(self, *, sender: Any = None, **options: Any) -> Callable[[Receiver], Receiver]: ...
    def connect(self, *arguments: Any, **options: Any) -> Any:
        """Call `receiver` with each signal (of `sender`, if given). `weak=False` keeps a reference to it."""
        return super().connect(*arguments, **options)


claimed = Signal(name="claimed", providing_args={"tally", "seconds"})
"""A claim has run: a `claim.Tally`, and how long it took."""

ran = Signal(name="ran", providing_args={"what"})
"""`beat` has woken a claim, or `maintain` has run."""

settled = Signal(name="settled", providing_args={"destination", "lease", "verdicts", "seconds"})
"""A single, or a batch of a drain, was settled: a `model.Verdict` for each message, and the seconds since the send
began."""

dead_letter = Signal(
    name="dead_letter", providing_args={"destination", "message_id", "event_type", "key", "attempts", "code", "error"}
)
"""A message can't be delivered and waits for a person."""

key_blocked = Signal(name="key_blocked", providing_args={"destination", "key", "message_id", "code"})
"""A dead message holds up the later ones of its key (`on_dead = "block"`)."""

breaker_opened = Signal(name="breaker_opened", providing_args={"destination", "code", "error"})
"""A destination is out of reach, so its circuit is open for a while. Sent again for each try that fails."""

task_ran = Signal(name="task_ran", providing_args={"task", "destination", "state", "waited", "seconds"})
"""A supervised task has run: its name, how it ended (Celery's state), for how many seconds it had waited since it was
handed over, and for how many it ran. The application's worker sends it; the sender is the application's app. If the
database was away as it began, destination and `waited` may be None."""

problems_changed = Signal(name="problems_changed", providing_args={"problems"})
"""The list of problems has changed. `problems`: the changes, as docs/alerts.md shows them. One worker of the cluster
sends it."""

"""What happens on the pipe, told to whoever runs it: a worker, a command, or a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outbox_tasks.model import Step, Verdict


class Listener:
    """Does nothing by itself."""

    def sent(self, destination: str, verdicts: Sequence[Verdict]) -> None:
        """The messages of a lease were sent, or judged. The database does not know it yet."""

    def circuit_opened(self, destination: str, code: str | None, error: str | None) -> None:
        """The circuit of a destination is open now."""

    def dead(self, verdict: Verdict) -> None:
        """A message is a dead letter now."""

    def done(self, destination: str, lease: str, verdicts: Sequence[Verdict], seconds: float) -> None:
        """The messages of a lease are settled; `seconds` is the time since their send began."""

    def opened(self, destination: str) -> Callable[[str | None, str | None], None]:
        """What to call when the circuit of this destination opens."""
        return lambda code, error: self.circuit_opened(destination, code, error)

    def settled(self, destination: str, lease: str, verdicts: Sequence[Verdict], seconds: float) -> None:
        """Tell of each dead letter, and then of all."""
        for verdict in verdicts:
            if verdict.step is Step.DEAD:
                self.dead(verdict)
        self.done(destination, lease, verdicts, seconds)

"""The publishers of a process, and the outcomes of what they send."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from outbox_tasks.destinations import Publisher, load, outcomes_of
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination

UNSENT = {Result.OUTAGE, Result.BEHIND}

SHARE_OF_A_REFUSAL = 0.4
"""The share of `send_timeout` within which a destination must have refused the password. Later, there is no time to
send once more."""


class Publishers(Mapping[str, Publisher]):
    """The publishers of the configured destinations. Each is made when first asked for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[str, Publisher] = {}

    def __getitem__(self, name: str) -> Publisher:
        made = self._made.get(name)
        if made is None:
            made = SharedPublisher(self._settings.destinations[name], self._settings.limits_of(name))
            made = self._made.setdefault(name, made)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings.destinations)

    def __len__(self) -> int:
        return len(self._settings.destinations)

    def close(self) -> None:
        """Close all publishers."""
        while self._made:
            self._made.popitem()[1].close()


class SharedPublisher:
    """A destination's publisher, for any number of threads and greenlets at once.

    Few clients may be used by two threads at once. So each send borrows a publisher of its own, and there are as many
    of them as there were sends at once.
    """

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._destination, self._settings = destination, settings
        self._free = [load(destination, settings)]
        self.keeps_order = getattr(self._free[0], "keeps_order", False)

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """Send by a publisher that nobody else uses meanwhile."""
        try:
            publisher = self._free.pop()
        except IndexError:
            publisher = load(self._destination, self._settings)
        try:
            return self._published(publisher, messages)
        finally:
            self._free.append(publisher)

    def _published(self, publisher: Publisher, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """Send. If the destination refuses the password, ask for another one, and send once more what was not sent."""
        began = time.monotonic()
        outcomes = publisher.publish(messages)
        soon = time.monotonic() - began < self._settings.send_timeout * SHARE_OF_A_REFUSAL
        password = self._destination.password
        if password is None or not soon or not _is_refused(outcomes):
            return outcomes
        password.forget()
        places = [place for place, outcome in enumerate(outcomes) if outcome.result in UNSENT]
        again = outcomes_of(publisher.publish, self._destination.name, [messages[place] for place in places])
        for place, outcome in zip(places, again, strict=True):
            outcomes[place] = outcome
        return outcomes

    def close(self) -> None:
        """Close all that are not being used."""
        while self._free:
            self._free.pop().close()


def _is_refused(outcomes: Sequence[Outcome]) -> bool:
    """Whether the password was refused, and nothing else: behind a message that failed, none of its key may be sent."""
    failures = (Result.RETRY, Result.OUTAGE, Result.DEAD)
    return {outcome.code for outcome in outcomes if outcome.result in failures} == {"unauthorized"}

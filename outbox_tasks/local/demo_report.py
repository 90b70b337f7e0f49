"""The result of the demo: what arrived at the destination, compared with what the application committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from rich.console import Console
from rich.text import Text

LINES = {
    "committed": "Orders committed, each with its message",
    "rolled_back": "Orders rolled back after their message was written",
    "failures": "Requests that the destination failed",
    "killed": "Messages in the hands of a worker that was killed",
    "retried": "Messages that met trouble on their way, and were tried again",
    "delivered": "Messages found at the destination",
    "duplicates": "Sent once more, for an answer was lost or a worker killed",
    "dead": "Can never be delivered: kept as dead letters",
    "lost": "Lost",
    "ghosts": "Rolled back, yet delivered",
}
"""What people read of each figure."""

BROKEN = {
    "lost": "Committed, yet missing at the destination",
    "ghosts": "Delivered, though nobody had committed them",
    "unexplained": "Arrived more than once, without a recorded cause",
}
"""The promises. Their figures must be 0."""


def counted(
    committed: Collection[str],
    rolled_back: Collection[str],
    messages: Mapping[str, tuple[str, str | None]],
    arrived: Sequence[str],
) -> dict[str, int]:
    """Count, after the relay has stopped. `messages`: the state and the last error's code of each, by its id."""
    times = Counter(arrived)
    dead = {id for id, (state, _) in messages.items() if state == "dead"}
    unfinished = {id for id, (state, _) in messages.items() if state not in ("sent", "dead")}
    return {
        "committed": len(committed),
        "rolled_back": len(rolled_back),
        "delivered": len(times.keys() & committed),
        "duplicates": len(arrived) - len(times),
        "retried": sum(code is not None for state, code in messages.values() if state != "dead"),
        "dead": len(dead),
        "unfinished": len(unfinished),
        "lost": len({*committed} - times.keys() - dead - unfinished),
        "ghosts": len(times.keys() - {*committed}),
        "unexplained": sum(messages.get(id, ("", None))[1] is None for id, count in times.items() if count > 1),
    }


def verdict(figures: Mapping[str, int]) -> list[str]:
    """What is not as promised, and what could not be shown, in plain words."""
    wrong = [f"✗ {text}: {figures[name]:,}" for name, text in BROKEN.items() if figures[name]]
    if figures["unfinished"]:
        wrong.append(f"! Still on their way: {figures['unfinished']:,} messages. Is the machine busy?")
    elif figures["dead"] != 1:
        wrong.append(f"✗ One message can't be delivered, and there are dead letters: {figures['dead']:,}")
    if not figures["killed"]:
        wrong.append("! No publish worker was met while it was sending, to be killed")
    return wrong


def show(figures: Mapping[str, int], console: Console) -> None:
    """A table, and the verdict."""
    console.print("\nWhat happened\n")
    for name, label in LINES.items():
        console.print(f"{label:<64}{figures[name]:>10,}", highlight=False)
    good = "✓ Nothing was lost, and nothing that was rolled back was delivered."
    console.print(Text("\n" + "\n".join(verdict(figures) or [good])))

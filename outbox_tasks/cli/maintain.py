"""`outbox-tasks maintain`: what is kept, and what goes."""

from __future__ import annotations

import click

from outbox_tasks.cli.shared.output import answer, json_option, remark
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating import retention
from outbox_tasks.telemetry.counters import Counters
from outbox_tasks.text import many


@click.command()
@json_option
def maintain() -> None:
    """Do the housekeeping that beat asks for every hour, until nothing is left to do.

    It makes the archive's next partitions, exports and drops its old days, and deletes old inbox marks, counts and
    audit entries. Exit code 1 if it could not drop an old day, or if anything else failed.
    """
    dropped: set[str] = set()
    partitions = marks = 0
    with open_store() as store:
        while True:
            done = retention.maintain(store)
            partitions, marks = partitions + done.made, marks + done.forgotten
            dropped |= {str(day) for day in done.dropped}
            if not done.more:
                break
        counters = Counters(lambda: store)
        counters.ran("maintain")
        counters.close()
    kept = done.kept
    left = {str(day): why for day, why in kept.items()}
    facts = {"partitions": partitions, "marks": marks, "dropped": sorted(dropped), "kept": left, "failed": done.failed}
    counts = many(partitions, "partition"), many(marks, "mark"), many(len(dropped), "day")
    answer(facts, "Made {}, forgot {}, dropped {}.".format(*counts))
    remark(*(f"{day} is still there: {why}" for day, why in kept.items()), *done.failed)
    raise SystemExit(bool(kept or done.failed))

"""`python -m lab soak`: a relay under a seeded stream of faults."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import click

from outbox_tasks.cli.shared.output import console, echo_json, json_option, say, wants_json


@click.command()
@json_option
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Which faults happen, and when. Without it: any.")
@click.option(
    "--minutes", default=5.0, show_default=True, type=click.FloatRange(0.05, 100_000), help="How long faults happen."
)
@click.option(
    "--every", type=click.FloatRange(0.1), help="A fault about every so many seconds. Without it: a third of a lease."
)
@click.option(
    "--rate", type=click.FloatRange(1.0, 10_000), help="Messages a second that the application writes.  [default: 150]"
)
@click.option("--short-leases", is_flag=True, help="Leases of some seconds instead of yours, to see more recoveries.")
@click.option(
    "--with", "extras", multiple=True, type=click.Choice(["standby", "pgbouncer", "small-disk"]),
    help="Give the soak's own database a standby to fail over to, a pooler before it, or a disk that can be filled.",
)  # fmt: skip
@click.option("--only", multiple=True, metavar="KIND", help="Only this kind of fault. Can be given several times.")
@click.option("--alone", is_flag=True, help="One fault at a time, each after the backlog of the one before is gone.")
@click.option("--flush-broker", is_flag=True, help="Allow the flush of its database of a broker that you name.")
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Keep data, logs, plan and rows here, whatever happens."
)
def soak(
    seed: int | None, minutes: float, every: float | None, rate: float | None, short_leases: bool,
    extras: tuple[str, ...], only: tuple[str, ...], alone: bool, flush_broker: bool, directory: Path | None,
) -> None:  # fmt: skip
    """Break the relay in every way, and look for what is lost.

    An application commits and rolls back messages, a relay delivers them, and a seeded stream of faults hurts
    everything: processes, connections, servers, the destination. In the end all that was committed is compared with
    all that arrived. Exit code 0 only if every promise was kept.

    It starts its own PostgreSQL and Redis. With OUTBOX_DATABASE_URL or OUTBOX_BROKER_URL it works in a schema and a
    Redis database of its own on your servers, or in a virtual host of RabbitMQ that no relay uses, and hurts only its
    own processes and connections. Your other settings hold, such as leases and time limits.
    """
    from lab.soak.faults import KINDS
    from lab.soak.options import RATE, Options
    from lab.soak.report import show
    from lab.soak.run import soak as run

    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise click.BadParameter("it is not empty", param_hint="--directory")
    if unknown := sorted(set(only) - KINDS.keys()):
        raise click.BadParameter(
            f"no such kind: {', '.join(unknown)}. There are {', '.join(KINDS)}", param_hint="--only"
        )
    kept = directory or Path(tempfile.mkdtemp(prefix="outbox-soak-"))
    chosen = random.getrandbits(32) if seed is None else seed
    options = Options(chosen, minutes, kept, rate or RATE, short_leases, flush_broker, every, extras, alone, only)
    try:
        result = run(options, console(stderr=True))
    except BaseException:
        say(f"The run did not end. What there is of it is in {kept}", err=True)
        raise
    if wants_json():
        echo_json(result.json())
    else:
        show(result, console())
    if result.verdict.problems or directory is not None:
        say(f"Data, logs, plan and rows are in {kept}", err=True)
    else:
        shutil.rmtree(kept, ignore_errors=True)
    raise SystemExit(1 if result.verdict.problems else 0)

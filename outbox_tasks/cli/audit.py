"""`outbox-tasks audit`: who did what, and why."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from outbox_tasks.cli.shared.options import limit_option, who_option
from outbox_tasks.cli.shared.output import answer, cell, echo_raw, json_option, table
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating.audit import deed, facts_of
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.messages.find import DEAD, Became, Lookup
from outbox_tasks.text import moment, one_line


@click.command()
@limit_option(50, 10_000)
@click.option("--payload", "entry", type=int, metavar="NO", help="Print the payload that edit no. NO replaced.")
@click.option("--became", "redrive", type=int, metavar="NO", help="Say what became of the messages of redrive no. NO.")
@click.option("--stop", type=int, metavar="NO", help="End act no. NO, which is under way, after its current batch.")
@who_option
@json_option
def audit(limit: int, entry: int | None, redrive: int | None, stop: int | None, who: str) -> None:
    """List who did what, and why, the last one first: redrive, discard, edit, pause, resume, limit.

    With --became, exit code 1 if a message of the redrive is dead again. With --stop, what the act has changed stays
    changed; exit code 1 if it is not under way.
    """
    with open_store() as store:
        if stop is not None:
            stopped = Runner(store).stop(stop, who)
            answer({"stopped": stopped}, f"No. {stop} is {'stopped' if stopped else 'not under way'}.")
            raise SystemExit(not stopped)
        if redrive is not None:
            _became(Lookup(store).became(redrive), redrive)
            return
        if entry is not None:
            former = Lookup(store).former_payload(entry)
            if former is None:
                raise click.ClickException(f"No. {entry} of the audit is no edit.")
            echo_raw(former)
            return
        acts = Lookup(store).acts(limit)
    answer({"acts": acts}, _table(acts) if acts else "Nobody has done anything yet.")


def _became(became: Became | None, entry: int) -> None:
    if became is None:
        raise click.ClickException(f"No. {entry} of the audit is no redrive that has changed messages.")
    answer({"known": became.kept, "became": [row._asdict() for row in became.rows]}, f"{became.text}.")
    if became.count(DEAD):
        raise SystemExit(1)


def _table(acts: list[dict[str, Any]]) -> Table:
    rows = table("no.", "when", "who", "what", right=("no.",))
    for act in acts:
        line = cell(deed(act), "bold").append(f" {one_line(act['target'] or '')}", "")
        for text, style in ((act["why"], ""), (facts_of(act), "dim")):
            if text:
                line.append(f"\n{one_line(text)}", style)
        rows.add_row(str(act["seq"]), moment(act["at"]), cell(act["who"]), line)
    return rows

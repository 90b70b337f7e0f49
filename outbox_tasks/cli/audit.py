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
@click.option("--became", "redriven", type=int, metavar="NO", help="Say what became of the messages of redrive no. NO.")
@click.option("--stop", type=int, metavar="NO", help="End act no. NO, which is under way, after its current batch.")
@who_option
@json_option
def audit(limit: int, entry: int | None, redriven: int | None, stop: int | None, who: str) -> None:
    """List who did what, and why, the last one first: redrive, discard, edit, pause, resume, limit.

    With --became, exit code 1 if a message of the redrive is dead again. With --stop, what the act has changed stays
    changed; exit code 1 if it is not under way.
    """
    with open_store() as store:
        if stop is not None:
            stopped = Runner(store).stop(stop, who)
            answer({"stopped": stopped}, f"No. {stop} is {'stopped' if stopped else 'not under way'}.")
            raise SystemExit(not stopped)
        if redriven is not None:
            _became(Lookup(store).became(redriven), redriven)
            return
        if entry is not None:
            former = Lookup(store).former_payload(entry)
            if former is None:
                raise click.ClickException(f"No. {entry} of the audit is no edit.")
            echo_raw(former)
            return
        found = Lookup(store).acts(limit)
    answer({"acts": found}, _table(found) if found else "Nobody has done anything yet.")


def _became(found: Became | None, entry: int) -> None:
    if found is None:
        raise click.ClickException(f"No. {entry} of the audit is no redrive that has changed messages.")
    answer({"known": found.kept, "became": [row._asdict() for row in found.rows]}, f"{found.text}.")
    if found.count(DEAD):
        raise SystemExit(1)


def _table(found: list[dict[str, Any]]) -> Table:
    """Who did what, when, to which messages and why."""
    shown = table("no.", "when", "who", "what", right=("no.",))
    for one in found:
        line = cell(deed(one), "bold").append(f" {one_line(one['target'] or '')}", "")
        for more, style in ((one["why"], ""), (facts_of(one), "dim")):
            if more:
                line.append(f"\n{one_line(more)}", style)
        shown.add_row(str(one["seq"]), moment(one["at"]), cell(one["who"]), line)
    return shown

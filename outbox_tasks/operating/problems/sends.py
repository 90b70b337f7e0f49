"""How the sends to destinations go: paused, limited, out of reach, refused, failing, put off."""

from __future__ import annotations

from collections import Counter

from outbox_tasks.operating.limits import InForce, set_by_people
from outbox_tasks.operating.overview import DestinationStatus, error_of_circuit
from outbox_tasks.operating.problems.problem import Problem, error, first_ones, note, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.text import many, number, one_line, shell_line, some, span

PUT_OFF_SECONDS = 120.0
"""A destination that lets its messages wait for longer than this is a problem. Ordinary retries come sooner."""


def sends(site: Site) -> Problems:
    """Whether destinations get their messages: each has one problem of this kind at most."""
    problems = (of_destination(name, status) for name, status in site.destinations.items())
    return first_ones(filter(None, problems), "destination")


def of_destination(name: str, status: DestinationStatus) -> Problem | None:
    """How the sends to one destination go, if not well: the list names only the first ones of many."""
    state = status.breaker["state"]
    if state == "paused":
        return _paused(name, status)
    if state in ("open", "trying"):
        return _open(name, status)
    if status.refuses:
        return _refuses(name, status)
    if status.fails:
        return _failing(name, status)
    return _put_off(name, status) if (status.waits_for or 0.0) > PUT_OFF_SECONDS else None


def _paused(name: str, status: DestinationStatus) -> Problem:
    row = status.breaker
    why = f": {one_line(row['paused_why'])}" if row["paused_why"] else ""
    return (warning if row["paused_for"] > 3600 else note)(  # after an hour somebody may have forgotten it
        "paused",
        f"{name} has been paused for {span(row['paused_for'])}, by {one_line(row['paused_by'])}{why}{_waits(status)}.",
        "Its messages wait until it is resumed.",
        shell_line("resume", name),
        which=name,
        since=row["paused_for"],
        how_many=status.waiting,
    )


def _open(name: str, status: DestinationStatus) -> Problem:
    row = status.breaker
    tries = "it is tried now" if row["state"] == "trying" else f"the next try is in {span(max(0.0, row['next_try']))}"
    return error(
        "breaker_open",
        f"The circuit of {name} has been open for {span(row['open_for'])}; {tries}: {many(row['failures'], 'send')} "
        f"in a row could not reach it ({error_of_circuit(row['error_code'], row['error'])}){_waits(status)}.",
        "Its messages wait, and spend no attempts. The relay tries one of them from time to time. When one gets "
        "through, all are sent again.",
        f"Mend the destination. To try at once: {shell_line('try', '--destination', name)}",
        which=name,
        since=row["open_for"],
        how_many=status.waiting,
    )


def _refuses(name: str, status: DestinationStatus) -> Problem:
    last = "none ever arrived" if status.arrived_ago is None else f"the last arrived {span(status.arrived_ago)} ago"
    return error(
        "destination_refuses",
        f"{name} refuses everything{_codes(status)}: {many(status.refused, 'send')} failed, and {last}"
        f"{_next_try(status)}{_waits(status)}.",
        "It answers, but takes nothing: its address, its credentials or what it expects may have changed.",
        f"{shell_line('list', '--by', 'error', '--destination', name)}\n"
        f"{shell_line('pause', name)}\nWhile it is paused, its messages wait and spend no attempts.",
        which=name,
        since=status.arrived_ago,
        how_many=status.waiting,
    )


def _failing(name: str, status: DestinationStatus) -> Problem:
    return error(
        "destination_failing",
        f"{status.share_failed:.0%} of the sends to {name} fail{_codes(status)}: {status.failed:,.0f} failed in the "
        f"last minute, and {status.sent:,.0f} arrived{_next_try(status)}{_waits(status)}.",
        "Some of its messages are refused, or some of its servers are out of order. Failed messages are tried again, "
        "and end as dead letters.",
        shell_line("list", "--by", "error", "--destination", name)
        + "\n"
        + shell_line("list", "--destination", name, "--state", "retrying"),
        which=name,
        how_many=round(status.failed),
    )


def _put_off(name: str, status: DestinationStatus) -> Problem:
    return warning(
        "destination_waits",
        f"{name} lets {many(status.states['retrying'], 'message')} wait{_codes(status)}: the next try is in "
        f"{span(status.waits_for or 0.0)}.",
        "The receiver asked for that (Retry-After), or the messages have failed many times.",
        shell_line("try", "--destination", name),
        which=name,
        since=status.failed_ago,
        how_many=status.states["retrying"],
    )


def _codes(status: DestinationStatus) -> str:
    """The errors of the messages that failed, the most frequent first."""
    counts = Counter(status.codes["dead"]) + Counter(status.codes["retrying"])
    names = [code for code, _ in counts.most_common()]
    return f" ({some(names)})" if names else ""


def _next_try(status: DestinationStatus) -> str:
    return f"; the next try is in {span(status.waits_for)}" if status.waits_for else ""


def _waits(status: DestinationStatus) -> str:
    """How many messages wait for the destination, and for how long the oldest one does."""
    if not status.waiting:
        return ""
    estimated = not status.estimated.isdisjoint(("pending", "retrying"))
    count = many(status.waiting, "message", number(status.waiting, estimated=estimated))
    ages = [age for age in (status.oldest, status.waited) if age is not None]
    since = f", the oldest for {span(max(ages))}" if ages else ""
    return f"; {count} {'waits' if status.waiting == 1 else 'wait'}{since}"


def limits(site: Site) -> Problems:
    """What people have set in the place of a destination's settings, and whether messages wait because of that."""
    status_of = site.destinations.get
    changed = set_by_people(site.store).items()
    problems = (_limited(name, limits, status_of(name, DestinationStatus())) for name, limits in changed)
    return first_ones(problems, "destination")


def _limited(name: str, in_force: list[InForce], status: DestinationStatus) -> Problem:
    used_up = bool(status.due) and any(_is_used_up(limit, status) for limit in in_force)
    return (warning if used_up else note)(
        "limited" if used_up else "limit_set",
        f"{name}: {'; '.join(f'{limit.setting} {one_line(str(limit))}' for limit in in_force)}"
        f"{_waits(status) if used_up else ''}.",
        "A person has limited it. Without the limit its settings count.",
        shell_line("limit", name, "--clear"),
        which=name,
        since=status.oldest if used_up else None,
        how_many=status.due if used_up else None,
    )


def _is_used_up(limit: InForce, status: DestinationStatus) -> bool:
    """Whether messages wait for the limit: most of what it allows was sent in the last minute."""
    if limit.setting == "concurrency":
        return bool(status.drains >= limit.value)
    return limit.setting == "rate_limit" and status.sent + status.failed >= 0.8 * limit.value * 60

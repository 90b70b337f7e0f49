"""The sends of the last hours, as charts show them."""

from __future__ import annotations

from sqlalchemy import ARRAY, Text, func, literal, literal_column, select, text

from outbox_tasks.operating.courses import courses
from outbox_tasks.relay.store import Store
from tests.conftest import Rows
from tests.integration.plans import explained

HOUR = 3600


def count(rows: Rows, destination: str, spans_ago: int, **outcomes: int) -> None:
    """Outcomes that were counted in the first minute of a span of an hour."""
    t = rows.tables.tallies
    minute = func.date_trunc("hour", func.now()) - literal(spans_ago) * text("interval '1 hour'")
    with rows.engine.begin() as connection:
        for outcome, number in outcomes.items():
            row = {"minute": minute, "destination": destination, "outcome": outcome, "count": number}
            connection.execute(t.insert().values(**row))


def seen(numbers: list[int]) -> list[int]:
    """Without the spans at both ends in which there was nothing: an hour may begin while a test runs."""
    used = [place for place, number in enumerate(numbers) if number]
    return numbers[used[0] : used[-1] + 1] if used else []


def test_sends_are_counted_by_the_time_they_ended(store: Store, rows: Rows) -> None:
    count(rows, "orders", 40, sent=1000)
    count(rows, "orders", 5, sent=3, handed=4, dead=1, behind=50)
    count(rows, "orders", 2, retry=1, later=2, outage=4)
    count(rows, "orders", 1, sent=9)
    count(rows, "<b>mails</b>", 3, sent=2)
    found = courses(store, HOUR, 24)
    assert found.keys() == {"orders", "<b>mails</b>"}
    assert seen(found["orders"].sent) == [7, 0, 0, 0, 9]
    assert seen(found["orders"].failed) == [1, 0, 0, 7]
    assert len(found["orders"].sent) == len(found["orders"].failed) == 24
    assert found["orders"].sent[-1] == 0  # this hour
    assert courses(store, HOUR, 24, "orders") == {"orders": found["orders"]}
    assert courses(store, HOUR, 24, "nobody") == {}


def test_the_counts_of_a_hundred_destinations_are_read_by_their_index(store: Store, rows: Rows) -> None:
    t = rows.tables.tallies
    minutes = func.generate_series(0, 359).table_valued("minute", name="m").render_derived()
    names = func.generate_series(1, 100).table_valued("number", name="n").render_derived()
    outcomes = func.unnest(literal(["sent", "retry"], ARRAY(Text))).table_valued("outcome", name="o").render_derived()
    at = func.date_trunc("minute", func.now()) - minutes.c.minute * literal_column("interval '1 minute'")
    made = select(at, func.concat("d", names.c.number), outcomes.c.outcome, literal(5)).select_from(
        minutes.join(names, literal(True)).join(outcomes, literal(True))
    )
    with rows.engine.begin() as connection:
        connection.execute(t.insert().from_select(["minute", "destination", "outcome", "count"], made))

    def read(destination: str | None) -> tuple[int, set[str]]:
        """How many rows of the table were read, and how."""
        outcomes = {"arrived": ["sent"], "failures": ["retry"], "destination": destination}
        plan = explained(store, "report/course.sql", {"width": 300, "spans": 36, **outcomes})
        scans = [node for node in plan if node.get("Relation Name") == t.name]
        return sum(node["Actual Rows"] for node in scans), {node.get("Index Name", "none") for node in scans}

    for name, most in ((None, 100), ("d7", 1)):
        number, how = read(name)
        assert how == {"outbox_tallies_pkey"}
        assert number <= most * 2 * 181
    assert len(courses(store, 300, 36)) == 100

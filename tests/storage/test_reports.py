"""What processes report of themselves, and what people steer: which of two reports counts, and what stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.storage.conftest import Box


def beat(box: Box, name: str, ago: float = 0.0, **facts: Any) -> list[str]:
    seen = [{"name": name, "kind": "worker", "ago": ago, "facts": facts}]
    return [name for [name] in box.run("report/beat.sql", seen=json.dumps(seen), late=20.0)]


def facts(box: Box, name: str) -> Any:
    return box.value("SELECT facts FROM outbox_heartbeats WHERE name = %s", name)


class TestHeartbeats:
    def test_of_two_reports_the_newest_counts(self, box: Box) -> None:
        assert beat(box, "claim", 2, by="one") == ["claim"]
        assert beat(box, "claim", 9, by="other") == []
        assert facts(box, "claim") == {"by": "one"}

    def test_a_worker_that_stops_leaves_the_heartbeat_of_its_successor(self, box: Box) -> None:
        beat(box, "claim@here", started="1")
        box.run("report/stopped.sql", name="claim@here", started="2")
        assert facts(box, "claim@here") == {"started": "1"}
        box.run("report/stopped.sql", name="claim@here", started="1")
        assert box.rows("SELECT name FROM outbox_heartbeats") == []

    @pytest.mark.parametrize(("ago", "met"), [(5.0, 1), (60.0, None)])
    def test_it_meets_another_one_under_its_name_if_that_is_fresh(self, box: Box, ago: float, met: int | None) -> None:
        beat(box, "claim@here", ago, started="1")
        beat(box, "claim@here", started="2")
        assert facts(box, "claim@here").get("met") == met
        beat(box, "claim@here", started="2")
        assert facts(box, "claim@here").get("met") is None


def test_another_timeline_is_told_for_some_time_and_a_crash_is_not(box: Box) -> None:
    assert box.run("report/timeline.sql") == [(None, None)]
    for fact, code, before in (("counts_since", "database_crashed", None), ("timeline", "timeline_changed", "other")):
        other = "UPDATE outbox_heartbeats SET facts = facts || jsonb_build_object(%s::text, 'other')"
        box.connection.execute(other, [fact])
        [(noted, error)] = box.run("report/timeline.sql")
        assert (noted, error.endswith("the message may have been delivered before")) == (code, True)
        assert [was for _, was, _ in box.run("doctor/timeline.sql", fresh=60.0)] == [before] * (before is not None)
        assert box.run("doctor/timeline.sql", fresh=0.0) == []
    assert box.run("report/timeline.sql") == []


def test_of_the_minute_before_this_one_a_part_counts(box: Box) -> None:
    with box.connection.transaction():  # within it, now() stays
        box.connection.execute("INSERT INTO outbox_sends (destination, arrived_at) VALUES ('orders', now())")
        box.connection.execute(
            "INSERT INTO outbox_tallies (minute, destination, outcome, count)"
            " SELECT date_trunc('minute', now()) - ago * interval '1 minute', 'orders', outcome, 60"
            " FROM generate_series(1, 2) AS ago, unnest(ARRAY['sent', 'dead']) AS outcome"
        )
        [(*_, sent, failed)] = box.run("report/lately.sql", arrived=["sent"], failures=["dead"])
        assert sent == failed == pytest.approx(60 - float(box.value("SELECT date_part('second', now())")))


class TestPause:
    def pause(self, box: Box, who: str, why: str | None) -> tuple[str, str | None]:
        box.run("audit/pause.sql", destination="orders", person=who, reason=why)
        [(by, reason)] = box.rows("SELECT paused_by, paused_why FROM outbox_destinations")
        return by, reason

    def test_a_second_one_without_a_reason_changes_nothing(self, box: Box) -> None:
        assert self.pause(box, "ann", "moving house") == ("ann", "moving house")
        at = box.value("SELECT paused_at FROM outbox_destinations")
        assert self.pause(box, "bob", None) == ("ann", "moving house")
        assert box.value("SELECT paused_at FROM outbox_destinations") == at
        assert self.pause(box, "carl", "still moving") == ("carl", "still moving")
        assert box.value("SELECT count(*) FROM outbox_audit") == 3


class TestLimits:
    def set(self, box: Box, value: float, seconds: float | None) -> None:
        wanted = json.dumps([{"setting": "rate_limit", "value": value}])
        asked = {"destination": "orders", "wanted": wanted, "seconds": seconds, "person": "ann", "reason": "a sale"}
        box.run("audit/limit.sql", **asked)

    def test_to_clear_ends_those_that_count(self, box: Box) -> None:
        clear = {"destination": "orders", "person": "ann", "reason": None}
        self.set(box, 4, 60)
        box.connection.execute("UPDATE outbox_limits SET until = now()")
        assert box.run("audit/unlimit.sql", **clear) == []
        for seconds in (60, None):
            self.set(box, 5, seconds)
            assert box.run("audit/unlimit.sql", **clear) == [("rate_limit",)]
        assert box.rows("SELECT setting FROM outbox_limits") == []
        actions = [action for [action] in box.rows("SELECT action FROM outbox_audit ORDER BY seq")]
        assert actions == ["limit"] * 2 + ["clear limits"] + ["limit", "clear limits"]

"""The soak's plan, and its verdict on records in which something is wrong."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from lab.__main__ import main
from lab.soak import run
from lab.soak.faults import KINDS
from lab.soak.ledger import Written
from lab.soak.options import Options
from lab.soak.plan import plan
from lab.soak.result import Result
from lab.soak.verdict import Arrival, Evidence, Happened, Row, judge

WRITTEN = [
    Written("a", "one", 10.0, 0.0, hopeless=False),
    Written("b", "with a key", 11.0, 0.0, hopeless=False),
    Written("c", "with a key", 11.0, 0.0, hopeless=False),
    Written("d", "hopeless", 12.0, 0.0, hopeless=True),
]
GOOD = Evidence(
    written=WRITTEN,
    acknowledged={"a": 10.1, "b": 11.1, "c": 11.1, "d": 12.1},
    withdrawn=frozenset({"w"}),
    rows={
        "a": Row("drained", None, 1, "sent", "timeout"),
        "b": Row("drained", "key:1", 2, "sent", None),
        "c": Row("drained", "key:1", 3, "sent", None),
        "d": Row("drained", None, 4, "dead", "bad_headers"),
    },
    arrivals=[Arrival("a", 10.2), Arrival("b", 11.2), Arrival("a", 11.3), Arrival("c", 14.0)],
    happened=[Happened("child_killed", 9.0, 9.5), Happened("broker_silent", 9.5, 12.0)],
)


def test_a_plan_has_each_kind_once_before_any_twice_and_a_longer_run_begins_like_a_shorter_one() -> None:
    long, short = plan(7, 600, list(KINDS), 7.5, 2.5), plan(7, 60, list(KINDS), 7.5, 2.5)
    assert long[: len(short)] == short
    assert long != plan(8, 600, list(KINDS), 7.5, 2.5)
    kinds = [one.kind for one in long]
    assert set(kinds[: len(KINDS)]) == set(KINDS)
    assert max(Counter(kinds).values()) - min(Counter(kinds).values()) <= 1
    assert min(one.lasts for one in long) < 7.5 < max(one.lasts for one in long), "some last longer than a lease"


def without(*ids: str) -> list[Arrival]:
    return [one for one in GOOD.arrivals if one.id not in ids]


def row(id: str, **values: Any) -> dict[str, Row]:
    return {**GOOD.rows, id: GOOD.rows[id]._replace(**values)}


class TestVerdict:
    def test_good_records_are_good(self) -> None:
        verdict = judge(GOOD)
        assert verdict.problems == []
        assert (verdict.committed, verdict.delivered, verdict.dead, verdict.rolled_back) == (4, 3, 1, 1)
        assert (verdict.repeated, verdict.causes) == (1, {"timeout": 1})
        assert judge(replace(GOOD, arrivals=[*GOOD.arrivals, Arrival("b", 15.0)])).overtakes == [], "a repetition"

    @pytest.mark.parametrize(
        ("kind", "ids", "changes"),
        [
            ("lost", ["b"], {"arrivals": without("b")}),
            ("lost", ["gone"], {"acknowledged": {**GOOD.acknowledged, "gone": 13.0}}),
            ("ghosts", ["w"], {"arrivals": [*GOOD.arrivals, Arrival("w", 15.0)]}),
            ("stuck", ["b"], {"rows": row("b", state="leased")}),
            ("died", ["b"], {"rows": row("b", state="dead", code="oom")}),
            ("unexplained", ["c"], {"arrivals": [*GOOD.arrivals, Arrival("c", 15.0), Arrival("c", 16.0)]}),
            ("overtakes", ["b"], {"arrivals": [Arrival("c", 11.2), Arrival("b", 11.3), Arrival("a", 11.4)]}),
            ("remarks", ["odd"], {"remarks": ["odd"]}),
            ("impossible", ["no such transition: …"], {"impossible": ["no such transition: …\n  its life"]}),
        ],
    )
    def test_each_broken_promise_is_found_and_told(self, kind: str, ids: list[str], changes: dict[str, Any]) -> None:
        verdict = judge(replace(GOOD, **changes))
        assert getattr(verdict, kind) == ids
        assert len(verdict.problems) == 1


HARMFUL = {
    "broker_killed", "broker_flushed", "broker_full", "database_killed", "database_stopped", "backend_killed",
    "backend_stopped", "connections_used", "failover", "disk_full", "pooler_killed",
}  # fmt: skip


@pytest.mark.parametrize("may_flush", [False, True])
def test_servers_that_a_user_names_are_not_hurt(may_flush: bool, tmp_path: Path) -> None:
    options = Options(7, 2, tmp_path, 150, may_flush=may_flush)
    stage: Any = SimpleNamespace(
        options=options, database=None, valkey=None, to_database=object(), broker_url="redis://h"
    )
    refused = {name for name, kind in KINDS.items() if kind.missing(stage)} - {"clock_wrong", "clock_set_back"}
    assert refused == HARMFUL - ({"broker_flushed"} if may_flush else set())


def failed(directory: Path) -> Result:
    options = Options(seed=7, minutes=2, directory=directory, rate=150, short_leases=True, every=1.5)
    verdict = judge(replace(GOOD, arrivals=GOOD.arrivals[1:], remarks=["<script>alert(1)</script> \x1b[31m"]))
    return Result(options, verdict, {"clock_wrong": "no <libfaketime>\x1b[31m"}, {}, 4, 100.0, 2.0)


def test_a_failure_ends_with_1_and_says_how_to_repeat_it_and_where_everything_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "soak", lambda options, _: failed(options.directory))
    done = CliRunner().invoke(main, ["soak", "--directory", str(tmp_path / "kept")])
    assert done.exit_code == 1
    assert "Repeat it: python -m lab soak --seed 7 --minutes 2 --short-leases --every 1.5" in done.stdout
    assert str(tmp_path / "kept") in done.stderr
    assert "\x1b" not in done.stdout
    assert "no <libfaketime>" in done.stdout
    told = json.loads(CliRunner().invoke(main, ["soak", "--json", "--directory", str(tmp_path)]).stdout)
    assert (told["ok"], told["seed"], told["committed"], told["lost"]) == (False, 7, 4, 0)

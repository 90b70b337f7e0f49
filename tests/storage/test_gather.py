"""The leases of single messages become one, and their messages begin together."""

from __future__ import annotations

import json
from uuid import uuid4

from tests.storage.conftest import Box

LONG_AGO = "2000-01-01"


def leased(box: Box, count: int, key: str | None = None) -> list[str]:
    """Write so many messages, and lease each of them. Returns the tokens."""
    box.write(count, key=key)
    seqs = [seq for [seq] in box.rows("DELETE FROM outbox_ready RETURNING seq")]
    keys = key and [key]
    bundles = [{"token": str(uuid4()), "destination": "orders", "seqs": [seq], "keys": keys} for seq in sorted(seqs)]
    box.run("claim/lease.sql", bundle=json.dumps(bundles), holder="a claim", hold=60)
    return [bundle["token"] for bundle in bundles]


def gather(box: Box, tokens: list[str], destination: str = "orders") -> tuple[str, list[int]]:
    """The new lease, and how many messages it has."""
    token = str(uuid4())
    found = box.run("deliver/gather.sql", token=token, tokens=tokens, destination=destination)
    return token, [row[0] for row in found]


def begin(box: Box, token: str) -> list[int]:
    given = {"token": token, "destination": "orders", "holder": "a worker", "hold": 40, "room": None, "keep": 20}
    return [row[0] for row in box.run("deliver/begin.sql", **given)]


def test_the_messages_begin_under_the_new_lease_and_no_more_under_their_own(box: Box) -> None:
    tokens = [*leased(box, 2), *leased(box, 1, key="a"), *leased(box, 1, key="b")]
    together, count = gather(box, tokens)
    assert count == [4]
    assert box.rows("SELECT seqs, keys, holder FROM outbox_leases") == [([1, 2, 3, 4], ["a", "b"], "a claim")]
    assert [begin(box, token) for token in tokens] == [[], [], [], []]
    assert begin(box, together) == [1, 2, 3, 4]


def test_without_keys_the_new_lease_has_none(box: Box) -> None:
    gather(box, leased(box, 2))
    assert box.rows("SELECT keys FROM outbox_leases") == [(None,)]


def test_it_ends_when_the_first_of_them_would_have(box: Box) -> None:
    tokens = leased(box, 2)
    box.connection.execute(
        "UPDATE outbox_leases SET locked_until = now() + interval '9 seconds' WHERE token = %s", tokens[:1]
    )
    gather(box, tokens)
    assert box.value("SELECT locked_until < now() + interval '10 seconds' FROM outbox_leases")


def test_what_is_begun_run_out_elsewhere_or_gone_is_left_alone(box: Box) -> None:
    tokens = leased(box, 4)
    assert begin(box, tokens[0]) == [1]
    box.connection.execute("UPDATE outbox_leases SET locked_until = %s WHERE token = %s", [LONG_AGO, tokens[1]])
    box.connection.execute("UPDATE outbox_leases SET destination = 'other' WHERE token = %s", [tokens[2]])
    together, count = gather(box, [*tokens, str(uuid4())])
    assert count == [1]
    assert begin(box, together) == [4]
    left = box.rows("SELECT token::text FROM outbox_leases WHERE token <> %s ORDER BY seqs", together)
    assert [token for [token] in left] == tokens[:3]


def test_a_second_time_there_is_nothing_to_gather(box: Box) -> None:
    tokens = leased(box, 2)
    gather(box, tokens)
    assert gather(box, tokens)[1] == []
    assert box.value("SELECT count(*) FROM outbox_leases") == 1

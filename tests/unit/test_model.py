"""Message ids."""

from __future__ import annotations

import time
from uuid import RFC_4122

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_tasks.model import uuid7


def test_an_id_is_a_uuid_of_version_7_that_differs_from_others_of_its_millisecond() -> None:
    ids = [uuid7() for _ in range(10_000)]
    assert {(id.version, id.variant) for id in ids} == {(7, RFC_4122)}
    assert len(set(ids)) == len(ids)


@given(st.lists(st.integers(0, (1 << 48) - 1), min_size=2, max_size=20, unique=True))
def test_ids_sort_by_the_millisecond_they_were_made_in(moments: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        ids = []
        for moment in moments:
            patch.setattr(time, "time_ns", lambda moment=moment: moment * 1_000_000 + 999_999)
            ids.append(uuid7())
    assert [made.int >> 80 for made in ids] == moments
    assert sorted(ids) == [made for _, made in sorted(zip(moments, ids, strict=True))]

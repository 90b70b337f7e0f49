"""Message ids."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_tasks.model import uuid7


@given(st.lists(st.integers(0, (1 << 48) - 1), min_size=2, max_size=20, unique=True))
def test_ids_sort_by_the_millisecond_they_were_made_in(moments: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        ids = []
        for moment in moments:
            patch.setattr(time, "time_ns", lambda moment=moment: moment * 1_000_000 + 999_999)
            ids.append(uuid7())
    assert {made.version for made in ids} == {7}
    assert [made.int >> 80 for made in ids] == moments
    assert sorted(ids) == [made for _, made in sorted(zip(moments, ids, strict=True))]

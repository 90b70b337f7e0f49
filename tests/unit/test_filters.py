"""Filters as people write them: each way leads to the same filter."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from outbox_tasks.cli import mend, outbox
from outbox_tasks.errors import InvalidFilter
from outbox_tasks.operating.messages import filters
from outbox_tasks.operating.messages.filters import command_line
from outbox_tasks.operating.messages.find import Filter
from outbox_tasks.operating.messages.preview import Choice

HOSTILE = ["--all", "-x", "a b", "it's", '"$(reboot)`id`\\', "%", "\n\t\x1b[2J\u202e", "🦊", "~", "!!"]

FILTERS = [
    Filter(states=("dead",)),
    Filter(states=("dead",), group="0123456789ab"),
    Filter(states=("dead",), destination="orders", event_type="order.*", key="k", code="http_400"),
    Filter(states=("dead",), older_than=7200.0, newer_than=5400.25),
    *(Filter(states=("dead",), key=text) for text in HOSTILE),
]
WAITING = [Filter(states=("pending", "handed over")), Filter(states=("scheduled", "dead"), destination="mails")]


def words(line: str) -> list[str]:
    """The words of a command, as bash reads them."""
    shown = subprocess.run(["bash", "-c", f"set +H; printf '%s\\0' {line}"], capture_output=True, check=True).stdout
    return shown.decode().split("\0")[:-1]


@pytest.fixture
def understood(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the command line makes of a command."""
    seen: list[Any] = []

    @contextmanager
    def no_store() -> Iterator[None]:
        yield None

    monkeypatch.setattr(mend, "open_store", no_store)
    monkeypatch.setattr(mend, "do", lambda _, choice, options: seen.append((choice, options)))

    def run(line: str) -> tuple[Choice, Any]:
        program, *arguments = words(line)
        assert program == "outbox-tasks"
        done = CliRunner().invoke(outbox, arguments)
        assert done.exit_code == 0, done.output
        return seen.pop()  # type: ignore[no-any-return]

    return run


def test_a_command_and_an_address_mean_the_same_messages(understood: Any) -> None:
    for wanted in FILTERS:
        choice, options = understood(command_line("redrive", wanted))
        assert (choice, options.rate) == (Choice("redrive", wanted, []), None)
    for wanted in FILTERS + WAITING:
        assert understood(command_line("discard", wanted))[0] == Choice("discard", wanted, [])
        query = {
            name: value if isinstance(value, list) else [value] for name, value in filters.query_of(wanted).items()
        }
        assert filters.asked(query) == wanted
    ids = [uuid4(), uuid4()]
    for action in filters.CHANGEABLE:
        wanted = filters.for_act(action, Filter(), named=True)
        assert understood(command_line(action, wanted, ids))[0] == Choice(action, wanted, ids)


def test_a_command_is_short_and_has_nothing_that_a_terminal_obeys() -> None:
    line = command_line("redrive", Filter(states=("dead",), key="a\x1b[2J\r\n\u202e'\x07"))
    assert line == "outbox-tasks redrive --key $'a\\x1b[2J\\x0d\\x0a\\U0000202e\\'\\x07'"
    wanted = Filter(states=("dead",), destination="orders", older_than=5400.0)
    assert command_line("redrive", wanted) == "outbox-tasks redrive --destination orders --older-than 90m"
    assert command_line("redrive", Filter(states=("dead",))) == "outbox-tasks redrive --all"


def test_what_an_address_may_say() -> None:
    query = {"key": [""], "older-than": [" "], "state": ["", "dead", "dead"], "other": ["x"]}
    assert filters.asked(query) == Filter(states=("dead",))
    assert filters.asked({"error": ["0123456789ab"]}) == Filter(states=("dead",), group="0123456789ab")
    query = {"key": ["x" * 500], "type": ["*a" * 5], "newer-than": ["36500d"]}
    assert filters.query_of(filters.asked(query)) == {name: value for name, [value] in query.items()}
    refused: list[dict[str, list[str]]] = [
        {"state": ["alive"]}, {"group": ["0123456789ab"], "state": ["sent"]}, {"older-than": ["9" * 400 + "d"]},
        {"newer-than": ["36501d"]}, {"newer-than": ["1e3s"]}, {"older-than": ["٣d"]}, {"older-than": ["-1s"]},
        {"older-than": ["90"]}, {"key": ["x" * 501]}, {"type": ["*a" * 6]}, {"key": ["a\0b"]},
    ]  # fmt: skip
    for query in refused:
        with pytest.raises(InvalidFilter):
            filters.asked(query)
    assert filters.ids_of([str(one := uuid4()), str(one)]) == [UUID(str(one))]
    with pytest.raises(InvalidFilter):
        filters.ids_of(["1 OR 1=1"])


@given(st.floats(0, filters.OLDEST_SECONDS))
def test_a_length_of_time_is_written_as_it_is_read(seconds: float) -> None:
    assert filters.seconds_of(filters.written(seconds)) == seconds
    assert (filters.seconds_of("1.5m"), filters.seconds_of("1w")) == (90, 604_800)


def test_an_act_is_for_states_that_it_can_change() -> None:
    assert filters.for_act("discard", Filter(), named=False).states == ("dead",)
    assert "pending" in filters.for_act("discard", Filter(), named=True).states
    for action, states in (("redrive", ("pending",)), ("discard", ("leased",)), ("discard", ("dead", "sent"))):
        with pytest.raises(InvalidFilter, match="only messages in these states can be"):
            filters.for_act(action, Filter(states=states), named=False)

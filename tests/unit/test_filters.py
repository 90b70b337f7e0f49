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

HOSTILE = [
    "--all",
    "-x",
    "a b",
    "it's",
    '"$(reboot)`id`\\',
    "%",
    "'; DROP TABLE x; --",
    "\n\t\x1b[2J\u202e",
    "🦊",
    "~",
    "!!",
]

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


class TestCommandLine:
    @pytest.mark.parametrize("wanted", FILTERS)
    def test_redrives_the_same_messages(self, understood: Any, wanted: Filter) -> None:
        line = command_line("redrive", wanted, rate=0.5, limit=100, why=wanted.key)
        choice, options = understood(line)
        assert choice == Choice("redrive", wanted, [])
        assert (options.rate, options.limit, options.why) == (0.5, 100, wanted.key)

    @pytest.mark.parametrize("wanted", FILTERS + WAITING)
    def test_discards_the_same_messages(self, understood: Any, wanted: Filter) -> None:
        assert understood(command_line("discard", wanted))[0] == Choice("discard", wanted, [])

    def test_names_the_same_messages(self, understood: Any) -> None:
        ids = [uuid4(), uuid4()]
        for action in filters.CHANGEABLE:
            wanted = filters.for_act(action, Filter(), named=True)
            assert understood(command_line(action, wanted, ids))[0] == Choice(action, wanted, ids)

    def test_has_nothing_that_a_terminal_obeys(self) -> None:
        line = command_line("redrive", Filter(states=("dead",), key="a\x1b[2J\r\n\u202e'"), why="\x07")
        assert line == "outbox-tasks redrive --key $'a\\x1b[2J\\x0d\\x0a\\U0000202e\\'' --why $'\\x07'"
        assert line.isprintable()

    def test_is_short(self) -> None:
        wanted = Filter(states=("dead",), destination="orders", older_than=5400.0)
        assert command_line("redrive", wanted, rate=200.0) == (
            "outbox-tasks redrive --destination orders --older-than 90m --rate 200"
        )
        assert command_line("redrive", Filter(states=("dead",))) == "outbox-tasks redrive --all"


class TestAddress:
    @pytest.mark.parametrize("wanted", FILTERS + WAITING)
    def test_says_the_same(self, wanted: Filter) -> None:
        query = {
            name: value if isinstance(value, list) else [value] for name, value in filters.query_of(wanted).items()
        }
        assert filters.asked(query) == wanted

    def test_empty_fields_of_a_form_are_not_given(self) -> None:
        assert filters.asked(
            {"key": [""], "older-than": [" "], "state": ["", "dead", "dead"], "other": ["x"]}
        ) == Filter(states=("dead",))

    def test_an_error_may_be_a_group(self) -> None:
        assert filters.asked({"error": ["0123456789ab"]}) == Filter(states=("dead",), group="0123456789ab")

    @pytest.mark.parametrize(
        "query",
        [
            {"state": ["alive"]},
            {"state": ["dead' OR 1=1"]},
            {"group": ["0123456789ab"], "state": ["sent"]},
            {"older-than": ["9" * 400 + "d"]},
            {"newer-than": ["36501d"]},
            {"newer-than": ["1e3s"]},
            {"older-than": ["٣d"]},
            {"key": ["x" * 501]},
            {"type": ["*a" * 6]},
            {"key": ["a\0b"]},
            {"destination": ["\ud800"]},
        ],
    )
    def test_refuses(self, query: dict[str, list[str]]) -> None:
        with pytest.raises(InvalidFilter):
            filters.asked(query)


def test_what_is_just_within_the_bounds_is_taken() -> None:
    query = {"key": ["x" * 500], "type": ["*a" * 5], "newer-than": ["36500d"]}
    assert filters.query_of(filters.asked(query)) == {name: value for name, [value] in query.items()}


@given(st.floats(0, filters.OLDEST_SECONDS))
def test_a_length_of_time_is_written_as_it_is_read(seconds: float) -> None:
    assert filters.seconds_of(filters.written(seconds)) == seconds


class TestStates:
    def test_of_an_act(self) -> None:
        assert filters.for_act("redrive", Filter(), named=False).states == ("dead",)
        assert filters.for_act("discard", Filter(), named=False).states == ("dead",)
        assert "pending" in filters.for_act("discard", Filter(), named=True).states

    @pytest.mark.parametrize(("action", "state"), [("redrive", "pending"), ("discard", "leased"), ("discard", "sent")])
    def test_that_it_can_not_change(self, action: str, state: str) -> None:
        with pytest.raises(InvalidFilter, match="only messages in these states can be"):
            filters.for_act(action, Filter(states=(state,)), named=False)


def test_ids_are_uuids() -> None:
    assert filters.ids_of([str(one := uuid4()), str(one)]) == [UUID(str(one))]
    with pytest.raises(InvalidFilter):
        filters.ids_of(["1 OR 1=1"])


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1.5m", 90), ("2h", 7200), ("3d", 259_200), ("1w", 604_800)]
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert filters.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "3x", "-1s", "1h30m", "36501d"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidFilter):
        filters.seconds_of(text)


def test_a_pattern_has_few_stars() -> None:
    filters.as_filter((), None, event_type="*a*a*a*a*")
    with pytest.raises(InvalidFilter, match="at most 5 stars"):
        filters.as_filter((), None, event_type="*a*a*a*a*a*")

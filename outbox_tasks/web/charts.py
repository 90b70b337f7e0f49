"""Charts, as SVG that is made here: columns of what was sent, and on top of them what failed.

They hold classes and attributes only, because the page allows no styles of elements: `style.css` gives the colours. All
texts are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from outbox_tasks.operating.courses import Course
from outbox_tasks.text import one_line

if TYPE_CHECKING:
    from markupsafe import Markup

SMALL, LARGE = (4, 32), (8, 160)
"""The width of a span and the height of a chart, in the units of its view box."""

LEAST = 2
"""The height of what is more than nothing, and would be too low to be seen."""


def small(name: str, course: Course) -> Markup:
    """A chart for a row of a table."""
    return _svg(name, course, SMALL, "chart small")


def large(name: str, course: Course) -> Markup:
    """A chart for a page."""
    return _svg(name, course, LARGE, "chart large")


def summary(name: str, course: Course) -> str:
    """What a chart shows, for those who do not see it."""
    sent, failed = sum(course.sent), sum(course.failed)
    hours = "hour" if course.hours == 1 else f"{course.hours:g} hours"
    return f"{one_line(name)}: {sent:,} sent and {failed:,} failed in the last {hours}"


def highest(course: Course) -> int:
    """How many sends the highest column stands for."""
    return max(map(sum, zip(course.sent, course.failed, strict=True)), default=0)


def by_hour(course: Course) -> list[tuple[str, int, int]]:
    """For a table: which hour, how many were sent and how many failed; this hour first."""
    each = 3600 // course.width
    pairs = list(zip(course.sent, course.failed, strict=True))[::-1]
    hours = [pairs[place : place + each] for place in range(0, len(pairs), each)]
    return [(_hour(ago), *(sum(part) for part in zip(*hour, strict=True))) for ago, hour in enumerate(hours)]


def _hour(ago: int) -> str:
    return "the last hour" if not ago else f"{ago} to {ago + 1} hours ago"


def _svg(name: str, course: Course, size: tuple[int, int], kind: str) -> Markup:
    from markupsafe import Markup

    step, height = size
    top = highest(course)
    sent = [_height(count, top, height) for count in course.sent]
    failed = [_height(count, top, height) for count in course.failed]
    below = [min(one, height - other) for one, other in zip(sent, failed, strict=True)]
    columns = [("sent", _columns(below, [0] * len(below), size)), ("failed", _columns(failed, below, size))]
    drawn = Markup("").join(Markup('<path class="{}" d="{}"/>').format(*one) for one in columns if one[1])
    return Markup(
        '<svg class="{}" role="img" viewBox="0 0 {} {}" preserveAspectRatio="none"><title>{}</title>{}</svg>'
    ).format(kind, step * len(course.sent), height, summary(name, course), drawn)


def _height(count: int, top: int, height: int) -> int:
    return max(LEAST, round(count * height / top)) if count else 0


def _columns(heights: Sequence[int], below: Sequence[int], size: tuple[int, int]) -> str:
    """A path: a column of each height, each on top of another."""
    step, height = size

    def each() -> Iterator[str]:
        for place, (own, under) in enumerate(zip(heights, below, strict=True)):
            if own:
                yield f"M{place * step} {height - under}v-{own}h{step - 1}v{own}z"

    return "".join(each())

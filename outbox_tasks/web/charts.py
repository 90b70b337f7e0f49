"""Charts: columns of what was sent, and on top of them what failed. `chart.html` draws them as SVG with classes and
attributes only, because the page allows no styles of elements: `style.css` gives the colours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from outbox_tasks.operating.courses import Course

LEAST = 2
"""The height of what is more than nothing, and would be too low to be seen."""


@dataclass(frozen=True)
class Chart:
    """A course, to be drawn: each span of it so wide, and all so high."""

    course: Course
    step: int = 8
    height: int = 160

    @property
    def highest(self) -> int:
        """How many sends the highest column stands for."""
        return max(map(sum, zip(self.course.sent, self.course.failed, strict=True)), default=0)

    @cached_property
    def columns(self) -> dict[str, str]:
        """The paths of the columns, by class."""
        paths, highest = {"sent": "", "failed": ""}, self.highest
        for place, counts in enumerate(zip(self.course.sent, self.course.failed, strict=True)):
            sent, failed = (max(LEAST, round(count * self.height / highest)) if count else 0 for count in counts)
            sent = min(sent, self.height - failed)
            for kind, high, below in (("sent", sent, 0), ("failed", failed, sent)):
                if high:
                    paths[kind] += f"M{place * self.step} {self.height - below}v-{high}h{self.step - 1}v{high}z"
        return paths


def small(course: Course) -> Chart:
    """A chart for a row of a table."""
    return Chart(course, 4, 32)


def by_hour(course: Course) -> list[tuple[str, int, int]]:
    """For a table: which hour, how many were sent and how many failed; this hour first."""
    each = 3600 // course.width
    sent, failed = course.sent[::-1], course.failed[::-1]
    found = []
    for ago in range(len(sent) // each):
        hour = slice(ago * each, (ago + 1) * each)
        found.append((f"{ago} to {ago + 1} hours ago" if ago else "the last hour", sum(sent[hour]), sum(failed[hour])))
    return found

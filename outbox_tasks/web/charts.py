"""Charts: columns of what was sent, and on top of them what failed. `kit.html` draws them as SVG with classes and
attributes only, because the page allows no styles of elements: `style.css` gives the colours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from outbox_tasks.operating.overview import Course


@dataclass(frozen=True)
class Chart:
    """A course, to be drawn: so wide for each span of time, and so high for the highest column."""

    course: Course
    hours: int
    step: int = 8
    height: int = 160

    @property
    def highest(self) -> int:
        """How many sends the highest column stands for."""
        return max(map(sum, zip(self.course.sent, self.course.failed, strict=True)), default=0)

    @cached_property
    def columns(self) -> dict[str, str]:
        """The paths of the columns, by class. Each count above zero is high enough to be seen."""
        paths, highest = {"sent": "", "failed": ""}, self.highest
        for place, counts in enumerate(zip(self.course.sent, self.course.failed, strict=True)):
            sent, failed = (max(2, round(count * self.height / highest)) if count else 0 for count in counts)
            sent = min(sent, self.height - failed)
            for kind, high, below in (("sent", sent, 0), ("failed", failed, sent)):
                if high:
                    paths[kind] += f"M{place * self.step} {self.height - below}v-{high}h{self.step - 1}v{high}z"
        return paths

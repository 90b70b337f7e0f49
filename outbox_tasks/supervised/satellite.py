"""What supervised tasks add to the relay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outbox_tasks.satellites import Satellite


class Supervised(Satellite):
    def checks(self) -> Sequence[Any]:
        from outbox_tasks.supervised.problems import CHECKS

        return CHECKS

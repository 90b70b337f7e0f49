"""Faults, as tired people make them, and the tests that must see each. `python -m tests.mutants` plants them.

A module here has the faults of one room, in a list FAULTS. At most two are in one
file: all can be replayed in a night.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    file: str
    """From the root of the checkout."""
    old: str
    """The text that goes. It is in the file exactly once."""
    new: str
    tests: str
    """The files or tests that must see it, as pytest takes them, separated by spaces."""
    breaks: str
    """What goes wrong for people, in a sentence."""

    def planted(self, root: Path = ROOT) -> str:
        """The file with the fault in it. A ValueError says why it can't be planted."""
        text = (root / self.file).read_text()
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has {count} times, not once: {self.old!r}")
        text = text.replace(self.old, self.new)
        if self.file.endswith(".py"):
            compile(text, self.file, "exec")  # a SyntaxError is a ValueError of ours: it proves nothing
        return text


def rooms() -> dict[str, list[Fault]]:
    """The faults of each room."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "__main__")
    return {name: importlib.import_module(f"{__name__}.{name}").FAULTS for name in names}

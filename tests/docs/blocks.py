"""The blocks of a page: what it shows between fences, and the set-up that its comments hide.

CONTRIBUTING.md says how to write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

SETUP = re.compile(r"<!-- setup (?P<language>\w+)\n(?P<text>.*?)-->\s*", re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.*?) -->\s*", re.DOTALL)
FILE = re.compile(r"(?:#|--|//|;) (?P<path>(?:[\w-]+/)*[\w.-]+\.\w+)$")


@dataclass(frozen=True)
class Block:
    """`line` is where its text begins in the page."""

    language: str
    text: str
    line: int
    not_run: str = ""
    hidden: bool = False

    @property
    def file(self) -> str | None:
        """The file that its first line names: it is written there, not run. What is only shown is no file."""
        found = FILE.match(self.text.partition("\n")[0])
        return found["path"] if found and self.language not in {"", "text"} else None


class IndentedBlock(Exception):
    """Only a fence says in which language a block is."""


def blocks(page: Path) -> list[Block]:
    """In the order of the page. Directives of the site are none."""
    return list(_blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    reason = ""
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type == "code_block":
            raise IndentedBlock(f"{page}:{(token.map or [0])[0] + 1}: put it between fences")
        if token.type == "html_block":
            if found := SETUP.fullmatch(token.content):
                yield Block(found["language"], found["text"], (token.map or [0])[0] + 2, hidden=True)
            found = NOT_RUN.fullmatch(token.content)
            reason = found["reason"] if found else ""
        elif token.type == "fence":
            if not token.info.startswith("{"):
                language = (token.info.split() or [""])[0]
                yield Block(language, token.content, (token.map or [0])[0] + 2, not_run=reason)
            reason = ""
        elif token.block and token.nesting >= 0 and token.type != "inline":
            reason = ""

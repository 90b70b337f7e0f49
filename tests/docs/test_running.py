"""A page that shows what does not work fails, and says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Block, IndentedBlock, blocks
from tests.docs.running import Page


@pytest.fixture
def page(tmp_path: Path, postgres_url: str) -> Page:
    """A page without a Redis."""
    return Page("page.md", tmp_path, postgres_url, 1)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (Block("python", "1 / 0\n", 7), r'"page\.md", line 7.*ZeroDivisionError'),
        (Block("sh", "true\nfalse\ntrue\n", 7), r"page\.md:7: exit code 1"),
        (Block("sh", "celery -A nowhere worker\n", 7), r"page\.md:7: .* has ended with"),
        (Block("toml", "no_such_setting = 1\n", 7), r"page\.md:7: Setting no_such_setting"),
        (Block("sql", "SELEC 1\n", 7, not_run="why"), r"page\.md:7: syntax error"),
    ],
    ids=lambda value: value.language + " not run" * bool(value.not_run) if isinstance(value, Block) else "",
)
def test_what_does_not_work_fails(page: Page, block: Block, said: str) -> None:
    with page, pytest.raises(Exception, match=f"(?s){said}"):
        page.run(block)


def test_blocks_go_on_from_those_before(page: Page, tmp_path: Path) -> None:
    with page:
        page.run(Block("sh", "mkdir below\ncd below\nexport NAME=anna\n", 1))
        page.run(Block("python", "# shop.py\ngreeting = 'hello'\n", 1))
        page.run(Block("python", "import asyncio, os\nfrom shop import greeting\n", 1))
        page.run(Block("python", "await asyncio.sleep(0)\nopen('said', 'w').write(greeting + os.environ['NAME'])\n", 1))
        page.run(Block("sh", "test $(basename $PWD) = below\n", 1))
    assert (tmp_path / "said").read_text() == "helloanna"


def test_a_page_is_divided_into_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "# Page\n\n<!-- setup python\nx = 1\n-->\n\n1. List\n\n   <!-- not run: why -->\n   ```sh\n   ls\n   ```\n\n"
        "```{toctree}\n```\n\n```text\nsaid\n```\n"
    )
    assert blocks(path) == [
        Block("python", "x = 1\n", 4, hidden=True),
        Block("sh", "ls\n", 11, not_run="why"),
        Block("text", "said\n", 18),
    ]
    path.write_text("Text\n\n    ls\n")
    with pytest.raises(IndentedBlock, match=r"page\.md:3: put it between fences"):
        blocks(path)

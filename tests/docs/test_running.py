"""A page that shows what does not work fails, and says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Block, IndentedBlock, blocks
from tests.docs.interpreter import BlockFailed
from tests.docs.running import Page


@pytest.fixture
def page(tmp_path: Path, postgres_url: str) -> Page:
    """A page without a Redis."""
    return Page("page.md", tmp_path, postgres_url, 1)


def written(tmp_path: Path, text: str) -> list[Block]:
    path = tmp_path / "page.md"
    path.write_text(text)
    return blocks(path)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (Block("python", "1 / 0\n", 7), r'"page\.md", line 7.*ZeroDivisionError'),
        (Block("sh", "true\nfalse\ntrue\n", 7), r"page\.md:7: exit code 1"),
        (Block("sh", "celery -A nowhere worker\n", 7), r"page\.md:7: .* has ended with"),
        (Block("console", "$ outbox-tasks no-such-command\n", 7), r"page\.md:7: exit code 2"),
        (Block("sql", "SELECT 1/0\n", 7), "division by zero"),
        (Block("toml", "no_such_setting = 1\n", 7), r"page\.md:7: Setting no_such_setting"),
        (Block("python", "if\n", 7, not_run="why"), r"page\.md:7: invalid syntax"),
        (Block("sh", "if\n", 7, not_run="why"), r"page\.md:7: .*syntax error"),
        (Block("sql", "SELEC 1\n", 7, not_run="why"), r"page\.md:7: syntax error"),
        (Block("json", "{\n", 7), r"page\.md:7: "),
        (Block("yaml", "a: [\n", 7), r"page\.md:7: "),
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


def test_addresses_lead_to_servers_of_its_own(page: Page) -> None:
    with page:
        shown = page.real("postgresql://localhost/shop redis://localhost:6379/1 http://localhost:8000 --port 8000")
        database, redis, web, _, port = shown.split()
        assert database == page.env["OUTBOX_DATABASE_URL"]
        assert redis == "redis://127.0.0.1:1/1"
        assert web.endswith(f":{port}")
        assert port != "8000"


def test_a_page_is_divided_into_its_blocks(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        "# Page\n\n<!-- setup python\nx = 1\n-->\n\n1. List\n\n   <!-- not run: why -->\n   ```sh\n   ls\n   ```\n\n"
        "```{toctree}\n```\n\n```text\nsaid\n```\n",
    )
    assert found == [
        Block("python", "x = 1\n", 4, hidden=True),
        Block("sh", "ls\n", 11, not_run="why"),
        Block("text", "said\n", 18),
    ]
    with pytest.raises(IndentedBlock, match=r"page\.md:3: put it between fences"):
        written(tmp_path, "Text\n\n    ls\n")


def test_a_failed_block_says_what_its_page_printed(page: Page) -> None:
    with page, pytest.raises(BlockFailed, match="printed before"):
        page.run(Block("python", "print('printed before', flush=True)\nraise ValueError\n", 1))

"""Every block of code and every command on a page does what the page shows: see CONTRIBUTING.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from outbox_tasks.local.servers import EmbeddedValkey
from tests.docs.blocks import PAGES, ROOT, blocks
from tests.docs.running import Page

NOT_RUN = 10
"""So many blocks can't be run here. Each says why; it is parsed all the same."""

CODE = {"python", "sh", "bash", "console", "sql", "toml"}
DATA = {"", "text", "json", "yaml", "properties", "diff"}


@pytest.fixture(scope="module")
def redis_server() -> Iterator[EmbeddedValkey]:
    """Pages use its databases as they like."""
    with EmbeddedValkey() as server:
        yield server


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_can_be_run(
    page: Path, tmp_path: Path, postgres_url: str, redis_server: EmbeddedValkey
) -> None:
    found = blocks(page)
    unknown = {block.language for block in found if not block.not_run} - CODE - DATA
    assert not unknown, f"nothing here runs {unknown}: begin with <!-- not run: the reason -->"
    if not any(block.language in CODE for block in found):
        return
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    with Page(str(page.relative_to(ROOT)), tmp_path, postgres_url, redis_server.port) as running:
        for block in found:
            running.run(block)


def test_every_file_that_a_page_writes_is_used_by_it() -> None:
    for page in PAGES:
        found = blocks(page)
        for number, block in enumerate(found):
            if block.file and not block.not_run:
                others = "\n".join(one.text for one in found[:number] + found[number + 1 :])
                used = Path(block.file).stem in others or block.file.startswith("test_")
                assert used or block.file in {"outbox.toml", "conftest.py", "pyproject.toml"}, f"{page}: {block.file}"


def test_few_blocks_are_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    left = [(page, block) for page in PAGES for block in blocks(page) if block.not_run]
    with capsys.disabled():
        print(f"\n{len(left)} blocks of the documentation are not run:")
        for page, block in left:
            print(f"  {page.relative_to(ROOT)}:{block.line}: {block.not_run}")
    assert len(left) <= NOT_RUN

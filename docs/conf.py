"""How the documentation site is built: `make docs` writes it to build/docs."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

from outbox_tasks import __version__

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = PROJECT["urls"]["Source"]
REVISION = os.environ.get("READTHEDOCS_GIT_IDENTIFIER", "main")

project = "outbox_tasks"
author = PROJECT["authors"][0]["name"]
copyright = author
release = version = __version__
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", PROJECT["urls"]["Documentation"] + "/")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "sphinx_copybutton", "sphinxcontrib.mermaid"]
exclude_patterns = ["images"]

myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"

copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = f"outbox_tasks {release}"
html_show_sphinx = False
html_theme_options = {
    "source_repository": SOURCE,
    "source_branch": "main",
    "source_directory": "docs/",
}


def links_that_leave_lead_home(app: Sphinx, docname: str, content: list[str]) -> None:
    """On GitHub a link may lead out of docs/, to code and examples. On the site it leads to them on GitHub."""
    page = DOCS / docname

    def led_home(link: re.Match[str]) -> str:
        path, hash, heading = link[1].partition("#")
        target = (page.parent / path).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"]({SOURCE}/{kind}/{REVISION}/{target.relative_to(ROOT)}{hash}{heading})"

    content[0] = re.sub(r"\]\((\.\./[^)\s]+)\)", led_home, content[0])


def places_without_pages_stay_empty(app: Sphinx, docname: str, content: list[str]) -> None:
    """The contents have places for pages that are not written yet."""
    if docname == "index":
        lines = content[0].splitlines(keepends=True)
        content[0] = "".join(line for line in lines if "*" not in line or any(DOCS.glob(line.strip() + ".md")))


def setup(app: Sphinx) -> None:
    app.connect("source-read", places_without_pages_stay_empty)
    app.connect("source-read", links_that_leave_lead_home)

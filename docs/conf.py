"""How the documentation site is built: `make docs` writes it to build/docs."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import click
from docutils import nodes
from pygments.lexers.sql import PostgresLexer
from sphinx.addnodes import toctree
from sphinx.application import Sphinx

from outbox_tasks import __version__, errors

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

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "sphinx_copybutton"]
exclude_patterns = ["images"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

default_role = "literal"
smartquotes = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"

copybutton_prompt_text = "$ "

# `-b linkcheck` asks other sites; what is made from this checkout may not be there yet.
linkcheck_ignore = [re.escape(PROJECT["urls"][name]) for name in ("Source", "Documentation")]

html_theme = "furo"
html_title = f"outbox_tasks {release}"
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
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


def the_family_of_errors(app: Sphinx, docname: str, content: list[str]) -> None:
    """The page of errors, from what each says."""
    if docname != "reference/errors":
        return
    family = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.OutboxError)]
    said = {one: " ".join(one.says.split()) for one in family}
    shown = [f"## {one.__name__}\n\n{text}\n" for one, text in said.items() if re.sub(r"\{\w+\}", "", text).strip()]
    content[0] = content[0].replace("<!-- errors -->", "\n".join(shown))


def stars_are_stars(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """The help of a command is plain text."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def texts_for_programs(app: Sphinx, error: Exception | None) -> None:
    """llms.txt, a list of the pages as llmstxt.org describes it; llms-full.txt, all of them as text."""
    if error or app.builder.name != "html":
        return
    lines, texts = [f"# {project}", "", f"> {PROJECT['description']}"], []
    for part in app.env.get_doctree("index").findall(toctree):
        if part["includefiles"]:
            lines += ["", f"## {part['caption']}", ""]
        for page in part["includefiles"]:
            title = app.env.titles[page].astext()
            lines.append(f"- [{title}]({html_baseurl}{app.builder.get_target_uri(page)})")
            texts.append(as_text(app, page))
    out = Path(app.outdir)
    (out / "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (out / "llms-full.txt").write_text("\n\n".join([as_text(app, "index"), *texts]), encoding="utf-8")


def as_text(app: Sphinx, page: str) -> str:
    """The Markdown of a page; if it is made from docstrings, what they say."""
    source = Path(app.env.doc2path(page)).read_text(encoding="utf-8")
    if page.startswith("reference/") or page == "index":
        tree = app.env.get_doctree(page)
        return "\n\n".join(part.astext() for part in tree.findall(nodes.TextElement) if not inside_text(part))
    return re.sub(r"<!--.*?-->\n*", "", source, flags=re.DOTALL)


def inside_text(node: nodes.Node) -> bool:
    """Whether it is a comment, or its text is part of another node's."""
    return isinstance(node, nodes.comment | nodes.raw) or isinstance(node.parent, nodes.TextElement)


def setup(app: Sphinx) -> None:
    app.add_lexer("sql", PostgresLexer)
    app.connect("source-read", links_that_leave_lead_home)
    app.connect("source-read", the_family_of_errors)
    app.connect("sphinx-click-process-options", stars_are_stars)
    app.connect("build-finished", texts_for_programs)

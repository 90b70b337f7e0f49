"""The guard in source: which calls of tasks would go past the outbox, as far as one file tells.

There are four kinds.

1. Inside a transaction: in a `with` that begins one, or in a function that `atomic` wraps.
2. Before a commit: in a function, between a change of a session and its `commit()`.
3. After a commit: in a function, behind the last `commit()`. A process that ends in between never sends the task.
4. On commit: what Django calls after a commit. A process that ends in between never sends the task.

What stands inside `capture` or `direct` is meant as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from outbox_tasks.text import short

SENDS = {"delay", "apply_async", "send_task"}
DEFERS = {"delay_on_commit", "apply_async_on_commit"}
"""Methods of Celery's tasks for Django."""

BEGINS = {"begin", "begin_nested", "atomic"}
CHANGES = {"add", "add_all", "delete", "execute", "flush", "merge", "bulk_save_objects", "save", "create", "update"}
ALLOWS = {"capture", "direct"}

KINDS = {
    "inside": "inside a transaction: a worker may run it before the commit, or although there is none",
    "before": "before the commit: a worker may run it before the commit, or although there is none",
    "after": "after the commit: it is lost if the process ends in between",
    "on commit": "on commit: it is lost if the process ends in between",
    "unread": "so this file was not read",
}

PASSED_OVER = ("node_modules", "site-packages", "venv", "migrations")


class Finding(NamedTuple):
    """A call that goes past the outbox. `kind`: a key of `KINDS`."""

    path: str
    line: int
    kind: str
    call: str


def find(path: Path) -> Iterator[Finding]:
    """The findings in a file, or in all files below a directory."""
    if path.is_dir():
        for inner in sorted(path.iterdir()):
            if (
                not inner.name.startswith(".")
                and inner.name not in PASSED_OVER
                and (inner.is_dir() or inner.suffix == ".py")
            ):
                yield from find(inner)
        return
    try:
        findings = _File(ast.parse(path.read_bytes())).findings
    except (SyntaxError, ValueError, OSError) as error:  # for example of a newer Python
        yield Finding(str(path), getattr(error, "lineno", None) or 0, "unread", str(error))
        return
    for node, kind in sorted(findings.items(), key=lambda item: item[0].lineno):
        yield Finding(str(path), node.lineno, kind, str(short(ast.unparse(node.func))))


class _File(ast.NodeVisitor):
    """One file, read once from top to bottom."""

    def __init__(self, tree: ast.Module) -> None:
        self.findings: dict[ast.Call, str] = {}
        self._inside = self._allowed = False
        self._functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        self.visit(tree)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        before = self._inside, self._allowed
        names = [_name(item.context_expr) for item in node.items]
        self._inside = self._inside or any(name in BEGINS for name in names)
        self._allowed = self._allowed or any(name in ALLOWS for name in names)
        self.generic_visit(node)
        self._inside, self._allowed = before

    visit_AsyncWith = visit_With  # noqa: N815 (ast names it)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before = self._inside, self._allowed
        self._inside = any(_name(decorator) == "atomic" for decorator in node.decorator_list)
        self._allowed = False
        self.generic_visit(node)
        self._inside, self._allowed = before
        self._of_commits(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node)
        if name == "on_commit" and any(map(self._sends, node.args)):
            self.findings[node] = "on commit"
            return  # what is inside is this finding
        if not self._allowed:
            if name in DEFERS:
                self.findings[node] = "on commit"
            elif _is_send(node) and self._inside:
                self.findings[node] = "inside"
        self.generic_visit(node)

    def _sends(self, argument: ast.expr) -> bool:
        """Whether what waits for the commit sends a task: a method, a lambda, a partial or a local function."""
        nodes = list(ast.walk(argument))
        names = [node.id for node in nodes if isinstance(node, ast.Name) and node.id in self._functions]
        return any(isinstance(node, ast.Attribute) and node.attr in SENDS for node in nodes) or any(
            _is_send(node) for name in names for node in ast.walk(self._functions[name])
        )

    def _of_commits(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Compare the places of sends, changes and commits in a function, branches in the order of their lines."""
        calls = sorted((node for node in _own(function) if isinstance(node, ast.Call)), key=lambda node: node.lineno)
        blocks = [node for node in _own(function) if isinstance(node, ast.With | ast.AsyncWith)]
        commits = [node.lineno for node in calls if _name(node) == "commit"]
        begun = [block for block in blocks if any(_name(item.context_expr) in BEGINS for item in block.items)]
        commits += [block.end_lineno or block.lineno for block in begun]
        changes = [node.lineno for node in calls if _name(node) in CHANGES and isinstance(node.func, ast.Attribute)]
        for node in calls:
            if node in self.findings or not _is_send(node) or _is_allowed(blocks, node):
                continue
            commit_before = max((line for line in commits if line < node.lineno), default=0)
            if any(commit_before < line < node.lineno for line in changes) and any(
                line > node.lineno for line in commits
            ):
                self.findings[node] = "before"
            elif commit_before:
                self.findings[node] = "after"


def _is_allowed(blocks: Iterable[ast.With | ast.AsyncWith], call: ast.Call) -> bool:
    allowing = (block for block in blocks if any(_name(item.context_expr) in ALLOWS for item in block.items))
    return any(call in ast.walk(block) for block in allowing)


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, but not in functions that it defines: they run at another time."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield node
            yield from _own(node)


def _is_send(node: ast.AST) -> bool:
    """Whether this sends a task at once, and not by the outbox's own methods: `outbox.delay(session, task)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in SENDS:
        return False
    return "outbox" not in ast.unparse(node.func.value).lower()


def _name(node: ast.expr) -> str:
    """The last name of a call or a reference: `atomic` of `transaction.atomic()`."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""

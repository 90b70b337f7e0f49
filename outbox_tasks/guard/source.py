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
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeGuard

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

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

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
            is_read = inner.is_dir() or inner.suffix == ".py"
            if is_read and not inner.name.startswith(".") and inner.name not in PASSED_OVER:
                yield from find(inner)
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError) as error:  # for example of a newer Python
        yield Finding(str(path), getattr(error, "lineno", None) or 0, "unread", str(error))
        return
    scopes = [tree, *(node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))]
    functions = {scope.name: scope for scope in scopes if isinstance(scope, FUNCTIONS)}
    calls = [(call, kind) for scope in scopes for call, kind in _of_scope(scope, functions)]
    for call, kind in sorted(calls, key=lambda found: found[0].lineno):
        yield Finding(str(path), call.lineno, kind, str(short(ast.unparse(call.func))))


def _of_scope(scope: ast.AST, functions: Mapping[str, ast.AST]) -> Iterator[tuple[ast.Call, str]]:
    """The calls in a function or module that go past the outbox. Branches count in the order of their lines."""
    nodes = list(_own(scope))
    calls = sorted((node for node in nodes if isinstance(node, ast.Call)), key=lambda node: node.lineno)
    begun, allowing = ([node for node in nodes if _is_block(node, names)] for names in (BEGINS, ALLOWS))
    inside, allowed = ({inner for block in blocks for inner in ast.walk(block)} for blocks in (begun, allowing))
    is_atomic = any(_name(decorator) == "atomic" for decorator in getattr(scope, "decorator_list", ()))
    commits = [node.lineno for node in calls if _name(node) == "commit"]
    commits += [block.end_lineno or block.lineno for block in begun]
    changes = [node.lineno for node in calls if _name(node) in CHANGES and isinstance(node.func, ast.Attribute)]
    for node in calls:
        if _name(node) == "on_commit" and any(_sends(argument, functions) for argument in node.args):
            yield node, "on commit"
        elif node in allowed:
            continue
        elif _name(node) in DEFERS:
            yield node, "on commit"
        elif _is_send(node):
            commit_before = max((line for line in commits if line < node.lineno), default=0)
            is_changed = any(commit_before < line < node.lineno for line in changes)
            if is_atomic or node in inside:
                yield node, "inside"
            elif is_changed and any(line > node.lineno for line in commits):
                yield node, "before"
            elif commit_before:
                yield node, "after"


def _sends(argument: ast.expr, functions: Mapping[str, ast.AST]) -> bool:
    """Whether what waits for the commit sends a task: a method, a lambda, a partial or a local function."""
    nodes = list(ast.walk(argument))
    bodies = [functions[node.id] for node in nodes if isinstance(node, ast.Name) and node.id in functions]
    return any(isinstance(node, ast.Attribute) and node.attr in SENDS for node in nodes) or any(
        _is_send(node) for body in bodies for node in ast.walk(body)
    )


def _is_block(node: ast.AST, names: Collection[str]) -> TypeGuard[ast.stmt]:
    """Whether it is a `with` that enters one of these."""
    return isinstance(node, ast.With | ast.AsyncWith) and any(_name(item.context_expr) in names for item in node.items)


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, but not in functions that it defines: they run at another time."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, (*FUNCTIONS, ast.Lambda)):
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

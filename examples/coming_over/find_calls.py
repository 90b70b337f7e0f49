"""Find the calls of tasks that wait for a commit, and say what becomes of each inside `outbox.capture`.

    python find_calls.py shop billing

It reads the code and runs none of it. Exit code 1: there are calls that you must change.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

STORED = "stored"  # inside outbox.capture(connection), without a change
CHANGE = "CHANGE"  # Django makes this call after the commit, past the outbox
LOOK = "look"  # it may call a task, or not

DELAYS = {"delay", "apply_async"}
ON_COMMIT = {"delay_on_commit", "apply_async_on_commit"}
AFTER_COMMIT = {"after_commit", "after_transaction_end"}


def main() -> int:
    found = [line for name in sys.argv[1:] for path in files(Path(name)) for line in calls(path)]
    for path, node, verdict, why in found:
        print(f"{path}:{node.lineno}: {verdict:6} {ast.unparse(node)[:80]}  {why}".rstrip())
    verdicts = [verdict for _, _, verdict, _ in found]
    print(", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in (STORED, CHANGE, LOOK)))
    return 1 if CHANGE in verdicts else 0


def files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def calls(path: Path) -> Iterator[tuple[Path, ast.expr, str, str]]:
    """Each call of interest in a file, with a verdict and what to do."""
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ON_COMMIT:
            yield path, node, STORED, ""
        elif name == "on_commit" and node.args:
            yield path, node, *verdict(node.args[0])
        elif name in {"listen", "listens_for"} and any(text(argument) in AFTER_COMMIT for argument in node.args):
            yield path, node, LOOK, "call outbox.delay(session, task, …) before the commit instead"


def verdict(function: ast.expr) -> tuple[str, str]:
    """What becomes of a function that waits for the commit."""
    if isinstance(function, ast.Call) and text(function.func) == "partial" and function.args:
        return verdict(function.args[0])
    if isinstance(function, ast.Attribute) and function.attr in DELAYS:
        return STORED, ""
    if isinstance(function, ast.Lambda):
        inner = function.body
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in DELAYS:
            arguments = [*map(ast.unparse, inner.args), *map(ast.unparse, inner.keywords)]
            return CHANGE, f"write partial({', '.join([ast.unparse(inner.func), *arguments])})"
    return LOOK, "if it calls a task, call the task itself here"


def text(node: ast.expr) -> str:
    """The last part of a name, or a text."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


if __name__ == "__main__":
    sys.exit(main())

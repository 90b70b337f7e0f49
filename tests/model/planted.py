"""Bugs that are planted in the models, one at a time. The search must find the promise that each breaks."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.explore import Model

PLANTED: dict[str, tuple[Model, str]] = {}
"""By what it is: the model with the bug in it, and the promise."""


def planted(promise: str, **limits: object) -> Callable[[Callable[..., Model]], Callable[..., Model]]:
    """Register a bug: a class that overrides one method of a model. Its docstring is its name."""

    def register(bug: Callable[..., Model]) -> Callable[..., Model]:
        name = str(bug.__doc__).rstrip(".")
        PLANTED[name] = bug(name, **limits), promise
        return bug

    return register

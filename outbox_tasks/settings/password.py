"""Passwords and tokens that change: where the relay gets one, and for how long it uses the answer."""

from __future__ import annotations

import shlex
import subprocess
import time
from importlib import import_module
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from outbox_tasks.errors import PasswordUnavailable
from outbox_tasks.text import said

COMMAND_SECONDS = 10.0
"""A command that takes longer has failed."""

_answers: dict[Password, tuple[str, float]] = {}
"""The answers that may still be used, each with the time of its end (monotonic). Threads may share it: at worst, two
ask at the same time."""


class Password(BaseModel):
    """Where a password comes from: `file`, `command` or `function`. Each new connection asks for it. An answer that a
    server has refused is not used again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path | None = None
    """Its text is the password. Each new connection reads it."""
    command: str | None = Field(default=None, min_length=1, repr=False)
    """It prints the password. No shell runs it."""
    function: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """`package.module:function`. It returns the password, or the password and for how many seconds it may be used."""
    seconds: float = Field(default=60.0, ge=0, le=86_400)
    """For how long further connections use an answer of `command` or `function`; 0: each one asks anew. Connections to
    brokers, which are few, always ask anew."""

    @model_validator(mode="before")
    @classmethod
    def _is_table(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError("it must say where the password is: {file = …}, {command = …} or {function = …}")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.file, self.command, self.function)) != 1:
            raise ValueError("it must have one of file, command and function")
        shlex.split(self.command or "")  # raises `ValueError`
        return self

    def ask(self) -> str:
        """The password. Raises `PasswordUnavailable`."""
        return self.ask_for_how_long()[0]

    def ask_for_how_long(self) -> tuple[str, float]:
        """The password, and for how many seconds it may still be used. Raises `PasswordUnavailable`."""
        text, end = _answers.get(self, ("", 0.0))
        if (seconds := end - time.monotonic()) > 0:
            return text, seconds
        try:
            text, seconds = self._answer()
        except Exception as error:  # code of others may raise anything
            raise PasswordUnavailable(source=self.source, reason=said(error).rstrip(".")) from None
        _answers[self] = text, time.monotonic() + seconds
        return text, seconds

    def ask_anew(self) -> str:
        """The password, and not an old answer. Raises `PasswordUnavailable`."""
        self.forget()
        return self.ask()

    def forget(self) -> None:
        """The server has refused the password: the next connection asks anew."""
        _answers.pop(self, None)

    @property
    def source(self) -> str:
        """The place that is asked, for people."""
        if self.command is not None:  # its arguments may be secrets
            return f"the command {shlex.split(self.command)[0]}"
        return f"the function {self.function}" if self.function else f"the file {self.file}"

    def _answer(self) -> tuple[str, float]:
        if self.file is not None:
            return _checked(self.file.read_text()), 0.0
        if self.command is not None:
            return _checked(_output(self.command)), self.seconds
        module, _, name = str(self.function).partition(":")
        answer = getattr(import_module(module), name)()
        text, seconds = answer if isinstance(answer, tuple) else (answer, self.seconds)
        return _checked(text), float(seconds)


def _output(command: str) -> str:
    argv = shlex.split(command)
    try:  # whoever writes the settings may run commands
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_SECONDS)  # noqa: S603
    except subprocess.TimeoutExpired:  # its text has the arguments, which may be secrets
        raise ValueError(f"it did not end within {COMMAND_SECONDS:g} s") from None
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ValueError(f"it ended with code {done.returncode}: {last_line}")
    return done.stdout


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"its answer is no text but {type(text).__name__}")
    if not (password := text.strip()):
        raise ValueError("its answer is empty")
    return password

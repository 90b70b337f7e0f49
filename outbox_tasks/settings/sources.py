"""Where settings come from, and the text of the error for a refused value."""

from __future__ import annotations

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, InitSettingsSource, PydanticBaseSettingsSource

from outbox_tasks.errors import ConfigurationError, SettingsFileError
from outbox_tasks.settings.destination import HIDDEN
from outbox_tasks.settings.django_project import read_django

log = logging.getLogger("outbox_tasks.settings")

PREFIX = "OUTBOX_"
CONFIG_VARIABLE = "OUTBOX_CONFIG"
DEFAULT_FILE = "outbox.toml"
NOT_SETTINGS = {CONFIG_VARIABLE, "OUTBOX_FLOWER_PASSWORD"}
"""Variables with our prefix that are read elsewhere: the place of the settings file, and Flower's password."""

SERVICE_LINK = re.compile("(tcp|udp|sctp)://.*")
"""Kubernetes sets variables with such values in each pod, for a Service called outbox-…. One may have the name of a
setting, as OUTBOX_MONITOR_PORT, but never its value."""


class Environment(EnvSettingsSource):
    """The environment. Others set variables with our prefix too: each one that is no setting is ignored, and logged
    once."""

    logged: ClassVar[set[str]] = set()
    """The variables that this process has logged."""

    def __call__(self) -> dict[str, Any]:
        known = {PREFIX + name.upper() for name in self.settings_cls.model_fields} | NOT_SETTINGS
        self.env_vars = {name: text for name, text in self.env_vars.items() if not SERVICE_LINK.fullmatch(text or "")}
        for variable in sorted(os.environ.keys() - known - self.logged):
            if variable.startswith(PREFIX):
                self.logged.add(variable)
                log.warning("%s is ignored: %s", variable, _no_such_setting(variable, known))
        return super().__call__()


def sources(
    settings_cls: type[BaseSettings], keywords: PydanticBaseSettingsSource
) -> tuple[PydanticBaseSettingsSource, ...]:
    """The places that settings come from. The first place that has a setting wins:

    1. the keywords of `Settings(...)`;
    2. the environment: `OUTBOX_<NAME>`;
    3. in a Django project, the dict `OUTBOX` of its settings;
    4. the settings file, `outbox.toml`;
    5. in a Django project whose default database has the outbox's tables: the URL of that database.
    """
    project, its_database = read_django()
    others = (InitSettingsSource(settings_cls, values) for values in (project, read_file(), its_database))
    return keywords, Environment(settings_cls), *others


def settings_file() -> Path:
    """Where the settings file is, or would be."""
    return Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_FILE)


def read_file() -> dict[str, Any]:
    """The values of the settings file. Raises `SettingsFileError`."""
    path = settings_file()
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if os.environ.get(CONFIG_VARIABLE):
            raise SettingsFileError(path=path, reason="there is no such file") from None
        return {}
    except (OSError, ValueError) as error:
        raise SettingsFileError(path=path, reason=error) from None


def first_problem(
    error: ValidationError, fields: Mapping[str, FieldInfo], tables: Mapping[str, type[BaseModel]]
) -> ConfigurationError:
    """The first problem that pydantic found, without secrets: the values of settings that no repr shows. `fields` are
    the settings; `tables` are those that are tables, with the model of an entry or of the table."""
    problem = error.errors()[0]
    known = (fields, *(model.model_fields for model in tables.values()))
    hidden = {name for names in known for name, field in names.items() if not field.repr}
    # Where a model is one of several types, pydantic says as the third part which of them it has tried.
    models = {model.__name__ for model in tables.values()}
    names = [str(part) for number, part in enumerate(problem["loc"]) if number != 2 or part not in models]
    setting = ".".join(names) or "settings"
    value = problem["input"]
    unknown = problem["type"] == "extra_forbidden"
    secret = not hidden.isdisjoint(problem["loc"]) or unknown  # an error hides the password of any URL by itself
    if isinstance(value, dict | list) or (isinstance(value, str) and secret):
        value = HIDDEN
    rule = problem["msg"].removeprefix("Value error, ")
    if unknown and names[0] in tables:
        rule = _no_such_setting(names[-1], tables[names[0]].model_fields)
    elif unknown:
        rule = _no_such_setting(setting, fields)
    return ConfigurationError(setting=setting, value=value, rule=rule)


def _no_such_setting(name: str, known: Collection[str]) -> str:
    """`name` and `known` are names of settings, or of variables."""
    # Without the prefix, which would make all variables alike.
    names = [known_name.removeprefix(PREFIX) for known_name in known]
    near = difflib.get_close_matches(name.removeprefix(PREFIX), names, n=1)
    prefix = PREFIX if name.startswith(PREFIX) else ""
    return "there is no such setting" + (f"; did you mean {prefix}{near[0]}?" if near else "")

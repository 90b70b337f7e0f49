"""Who may do what with the tables: whether our role lacks a right or sees no rows, and whether a role has too many."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import get_args

from outbox_tasks.database.rights import HOUSEKEEPING, RELATIONS, WRITTEN, Kind, allows, functions, rights
from outbox_tasks.database.schema import quoted
from outbox_tasks.operating.problems.problem import error, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.text import shell_line, some

TABLES = [f"outbox_{name}" for name in RELATIONS]

KINDS: tuple[Kind, ...] = get_args(Kind)

NAMED_TABLES = 4
"""Tables of a role that are named; the others are counted."""

Right = tuple[str, str, str | None]
"""A table or function, a privilege, and the column if the privilege is on a column."""


def lacking(site: Site) -> Problems:
    """Whether the relay's role has the rights that it needs."""
    needed = [{"relation": name, "privilege": one} for name, privileges in rights("relay") for one in privileges]
    lacks: dict[str, list[str]] = {}
    for row in site.look("rights", needed=json.dumps(needed), functions=list(functions("relay"))):
        lacks.setdefault(row.name, []).append(row.privilege)
    if "outbox_heartbeats" in lacks and not site.deep:
        return  # the role of a person who looks, not the relay's. The doctor is asked with the relay's role.
    granted = [
        (", ".join(sorted(privileges)), name, f"FUNCTION {name}" if privileges == ["EXECUTE"] else site.qualified(name))
        for name, privileges in lacks.items()
    ]
    role = site.server.role
    if granted:
        yield error(
            "rights_missing",
            f"The role {role} lacks rights: {'; '.join(f'{privileges} on {name}' for privileges, name, _ in granted)}.",
            "If the relay works with this role, whatever needs them fails: claims, sends, counts, housekeeping.",
            "\n".join(f"GRANT {privileges} ON {what} TO {quoted(role)};" for privileges, _, what in granted),
        )


def hidden(site: Site) -> Problems:
    """Whether row-level security hides rows from our role."""
    rows = site.look("hidden", names=TABLES)
    if not rows:
        return
    role = quoted(site.server.role)
    switched = "\n".join(
        f"ALTER TABLE {site.qualified(row.name)} {'NO FORCE' if row.own else 'DISABLE'} ROW LEVEL SECURITY;"
        for row in rows
    )
    yield error(
        "rows_hidden",
        f"Row-level security hides rows of {', '.join(row.name for row in rows)} from the role {site.server.role}.",
        "The relay refuses to work, because it could not know of the messages in them. Rights keep others out "
        "already: see docs/security.md.",
        f"{switched}\n-- or, if it must stay on: ALTER ROLE {role} BYPASSRLS;",
    )


def surplus(site: Site) -> Problems:
    """Whether a role has rights that no kind of role has, of those that it was given."""
    granted: dict[str, set[Right]] = defaultdict(set)
    for row in site.look("grants", names=TABLES, functions=[*WRITTEN, *HOUSEKEEPING]):
        granted[row.role].add((row.name, row.privilege, row.column_))
    too_many = []
    for role, rights_ in granted.items():
        kinds = [kind for kind in KINDS if _is_a(kind, rights_) or (kind == "relay" and role == site.server.role)]
        if extra := {right for right in rights_ if not any(allows(kind, *right) for kind in kinds)}:
            too_many.append((role, kinds, extra))
    if not too_many:
        return
    yield warning(
        "rights_surplus",
        "; ".join(f"{role} has {_listed(extra)}" for role, _, extra in too_many) + ".",
        "`outbox-tasks init` did not give these rights. Whoever has them may read payloads, or forge, change or delete "
        "messages. Perhaps they come from the default privileges of the schema, or from a dump.",
        "\n".join(_revoked(site, *role) for role in too_many),
    )


def _is_a(kind: Kind, granted: set[Right]) -> bool:
    """Whether a role has all rights that this kind needs."""
    have = {(name.partition("(")[0], privilege) for name, privilege, _ in granted}
    tables = {(name, privilege.partition(" ")[0]) for name, privileges in rights(kind) for privilege in privileges}
    return have >= (tables or {(name, "EXECUTE") for name in WRITTEN})


def _listed(extra: set[Right]) -> str:
    """`SELECT, DELETE on outbox_dead, outbox_ready, …`: the tables with the same privileges together."""
    of_each: dict[str, set[str]] = defaultdict(set)
    for name, privilege, _ in extra:
        of_each[name].add(privilege)
    together: dict[str, list[str]] = defaultdict(list)
    for name, privileges in sorted(of_each.items()):
        together[", ".join(sorted(privileges))].append(name)
    return "; ".join(f"{privileges} on {some(names, NAMED_TABLES)}" for privileges, names in together.items())


def _revoked(site: Site, role: str, kinds: list[Kind], extra: set[Right]) -> str:
    """What takes all rights on these tables from a role, and gives those of its kind back."""
    whom = role if role == "PUBLIC" else quoted(role)
    functions_ = sorted({name for name, privilege, _ in extra if privilege == "EXECUTE"})
    tables = sorted({site.qualified(name) for name, privilege, _ in extra if privilege != "EXECUTE"})
    lines = [f"REVOKE ALL ON TABLE {', '.join(tables)} FROM {whom} CASCADE;"] if tables else []
    lines += [f"REVOKE ALL ON FUNCTION {', '.join(functions_)} FROM {whom} CASCADE;"] if functions_ else []
    again = shell_line("init", *(word for kind in kinds for word in (f"--{kind}", role)))
    return "\n".join([*lines, f"-- then: {again}"] if kinds else lines)

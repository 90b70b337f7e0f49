"""What our role may do with the tables: whether it lacks a right, and whether it sees all rows."""

from __future__ import annotations

import json

from outbox_tasks.database.rights import RELATIONS, functions, rights
from outbox_tasks.database.schema import quoted
from outbox_tasks.operating.problems.problem import error
from outbox_tasks.operating.problems.site import Problems, Site


def lacking(site: Site) -> Problems:
    """Whether the relay's role has the rights that it needs."""
    needed = [{"relation": name, "privilege": each} for name, privileges in rights("relay") for each in privileges]
    lacks: dict[str, list[str]] = {}
    for row in site.look("rights", needed=json.dumps(needed), functions=list(functions("relay"))):
        lacks.setdefault(row.name, []).append(row.privilege)
    if not lacks or ("outbox_heartbeats" in lacks and not site.deep):
        return  # a person looks, with a role of their own. Only the doctor is asked with the relay's role.
    role = site.server.role
    facts, grants = [], []
    for name, privileges in lacks.items():
        what = f"FUNCTION {name}" if privileges == ["EXECUTE"] else site.qualified(name)
        facts.append(f"{', '.join(sorted(privileges))} on {name}")
        grants.append(f"GRANT {', '.join(sorted(privileges))} ON {what} TO {quoted(role)};")
    yield error(
        "rights_missing",
        f"The role {role} lacks rights: {'; '.join(facts)}.",
        "If the relay works with this role, whatever needs them fails: claims, sends, counts, housekeeping.",
        "\n".join(grants),
    )


def hidden(site: Site) -> Problems:
    """Whether row-level security hides rows from our role."""
    rows = site.look("hidden", names=[f"outbox_{name}" for name in RELATIONS])
    if not rows:
        return
    role = quoted(site.server.role)
    switched_off = "\n".join(
        f"ALTER TABLE {site.qualified(row.name)} {'NO FORCE' if row.own else 'DISABLE'} ROW LEVEL SECURITY;"
        for row in rows
    )
    yield error(
        "rows_hidden",
        f"Row-level security hides rows of {', '.join(row.name for row in rows)} from the role {site.server.role}.",
        "The relay refuses to work, because it could not know of the messages in them. Rights keep others out "
        "already: see docs/security.md.",
        f"{switched_off}\n-- or, if it must stay on: ALTER ROLE {role} BYPASSRLS;",
    )

"""The SQL verbs of the product: `claim/due.sql` is of the core, `feeds/take.sql` of a satellite."""

from pathlib import Path

import outbox_tasks

PACKAGE = Path(outbox_tasks.__file__).parent
CORE = PACKAGE / "database/sql"

VERBS = sorted(
    [str(path.relative_to(CORE)) for path in CORE.glob("*/*.sql") if path.parent.name != "parts"]
    + [
        f"{path.parent.parent.name}/{path.name}"
        for path in PACKAGE.glob("*/sql/*.sql")
        if path.name != "tables.sql" and CORE not in path.parents
    ]
)

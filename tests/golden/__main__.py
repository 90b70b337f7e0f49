"""Writes the golden files anew: `python -m tests.golden`, then look at the diff."""

from tests.golden import DIRECTORY, current

for old in DIRECTORY.glob("*.sql"):
    old.unlink()
for name, text in current().items():
    (DIRECTORY / f"{name}.sql").write_text(text, encoding="utf-8")

"""What expositions of Prometheus say, and what is written about them."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[1]

Samples = dict[str, list[tuple[dict[str, str], float]]]
"""Labels and value of each sample, by name."""

Described = dict[str, tuple[str, frozenset[str]]]
"""Type and labels of each metric, by name."""


def samples(exposition: bytes) -> Samples:
    """All of them."""
    found: Samples = defaultdict(list)
    for family in text_string_to_metric_families(exposition.decode()):
        for sample in family.samples:
            found[sample.name].append((sample.labels, sample.value))
    return dict(found)


def described(exposition: bytes) -> Described:
    """The metrics of an exposition that have samples."""
    found: Described = {}
    for family in text_string_to_metric_families(exposition.decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if family.samples:
            found[name] = (family.type, frozenset(labels))
    return found


def documented(title: str) -> Described:
    """The metrics in the table under a title of docs/metrics.md."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(outbox_\w+)` \| (\w+) \| ([\w, ]*)\|", section, re.MULTILINE)
    return {name: (kind, frozenset(re.findall(r"\w+", labels))) for name, kind, labels in rows}

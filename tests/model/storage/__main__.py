"""`python -m tests.model.storage`: search all that the tests search and more, and write tables.md anew."""

from __future__ import annotations

import sys
import time

from tests.model import page
from tests.model.storage.explore import explore
from tests.model.storage.planted_keys import PLANTED
from tests.model.storage.variants import BIG, SEARCHED


def main() -> int:
    began, failed, states = time.process_time(), False, 0
    variants, bugs = [], []
    for model in SEARCHED + BIG:
        found = explore(model)
        states += found.states
        failed = failed or found.broken is not None
        print(f"{model.name}: {found}", flush=True)
        variants.append(page.variant_line(model.name, found))
    print(f"{states:,} states in {time.process_time() - began:.0f} s of CPU\n")
    for name, (bug, promise) in PLANTED.items():
        found = explore(bug)
        failed = failed or found.broken != promise
        print(f"{name}: {found}\n", flush=True)
        bugs.append(page.bug_line(name, found))
    page.write("storage", variants)
    page.write("storage-bugs", bugs)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

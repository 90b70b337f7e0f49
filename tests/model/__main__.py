"""`python -m tests.model`: search all that the tests search, and show how each planted bug is found.

--big searches more.
"""

from __future__ import annotations

import sys
import time

from tests.model.explore import explore
from tests.model.pipe.variants import BIG, SEARCHED
from tests.model.run_search import RunModel
from tests.model.runs import Limits, Runs
from tests.model.test_model import PLANTED, RUNS

BIG_RUNS = [
    Limits("a supervised task that changes, and people"),
    Limits("three attempts", max_attempts=3, people=False),
]


def main(arguments: list[str]) -> int:
    if not {"-h", "--help"}.isdisjoint(arguments):
        print(__doc__)
        return 0
    big = "--big" in arguments
    models = [*SEARCHED, *(BIG if big else ()), *(RunModel(Runs(each)) for each in [*RUNS, *(BIG_RUNS if big else ())])]
    failed, states, began = False, 0, time.process_time()
    for model in models:
        found = explore(model)
        states += found.states
        failed = failed or found.broken is not None
        print(f"{model.name}: {found}", flush=True)
    print(f"{states:,} states in {time.process_time() - began:.0f} s of CPU\n")
    for name, (bug, promise) in PLANTED.items():
        found = explore(bug)
        failed = failed or found.broken != promise
        print(f"{name}: {found}\n", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

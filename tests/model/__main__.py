"""`python -m tests.model`: search all that the tests search, and show what the planted bugs come to.

--big searches more; --page writes tables.md and the moves of docs/architecture.md anew.
"""

from __future__ import annotations

import sys
import time

from tests.model import page, planted_runs
from tests.model.planted import PLANTED
from tests.model.run_search import RunSearch
from tests.model.runs import Runs
from tests.model.search import Search, search
from tests.model.variants import BIG, BIG_RUNS, RUNS, SEARCHED


def main(arguments: list[str]) -> int:
    if not {"-h", "--help"}.isdisjoint(arguments):
        print(__doc__)
        return 0
    variants, states = [], 0
    steps: page.Edges = {}
    began = time.process_time()
    failed = False
    for protocol, variant in [*SEARCHED, *(BIG if "--big" in arguments else ())]:
        run = Search(protocol(variant))
        found = run.run()
        states += found.states
        failed = failed or found.broken is not None
        print(f"{variant.name}: {found}", flush=True)
        if (protocol, variant) in SEARCHED:
            variants.append(page.variant_line(variant.name, found))
            for step, changes in page.edges(run.space).items():
                steps.setdefault(step, {}).update(changes)
    runs: page.Edges = {}
    for limits in [*RUNS, *(BIG_RUNS if "--big" in arguments else ())]:
        searched = RunSearch(Runs(limits))
        found = searched.run()
        states += found.states
        failed = failed or found.broken is not None
        print(f"{limits.name}: {found}", flush=True)
        if limits in RUNS:
            variants.append(page.variant_line(limits.name, found))
            for step, changes in page.run_edges(searched).items():
                runs.setdefault(step, {}).update(changes)
    print(f"{states:,} states in {time.process_time() - began:.0f} s of CPU\n")
    bugs = []
    for name, (bug, variant, promise) in PLANTED.items():
        found = search(bug(variant))
        failed = failed or found.broken != promise
        print(f"{name}: {found}\n", flush=True)
        bugs.append(page.bug_line(name, found))
    for name, (run_bug, limits, promise) in planted_runs.PLANTED.items():
        found = RunSearch(run_bug(limits)).run()
        failed = failed or found.broken != promise
        print(f"{name}: {found}\n", flush=True)
        bugs.append(page.bug_line(name, found))
    if "--page" in arguments:
        page.write("variants", variants)
        page.write("steps", page.step_lines(steps))
        page.write("runs", page.step_lines(runs))
        page.write("bugs", bugs)
        page.write("moves", page.move_lines(), page.MAP)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# The two that a fresh machine needs: make demo, make test. Nothing but Python 3.11+ with its venv, make and a package index
# is assumed. A target installs what it needs, and no more.
# Every OUTBOX_… variable reaches the commands: with OUTBOX_DATABASE_URL and OUTBOX_BROKER_URL set, those servers are used.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=

bin := $(VENV)/bin
pip := $(bin)/python -m pip --disable-pip-version-check --quiet --quiet install -c constraints.txt
runtime := $(VENV)/.installed-runtime
tests := $(VENV)/.installed-tests
pages := $(VENV)/.installed-docs
sources := outbox_tasks workers beat_schedule.py docs/conf.py $(wildcard tests bench lab examples)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo up quick units test daily weekly mutants search clock fault matrix lint format docs bench package constraints audit \
  clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  ARGS=… is handed on (make demo ARGS=--json, make test ARGS='-k claim'); PYTHON=… chooses the interpreter"

demo: $(runtime) ## the relay at work on a small order application, with failures and a kill -9
	@$(bin)/outbox-tasks demo $(ARGS)

up: $(runtime) ## database, broker, workers, beat and Flower on this machine, until Ctrl-C
	@exec $(bin)/outbox-tasks up $(ARGS)

quick: $(tests) ## lint and the unit tests, in less than a minute: for while you work
	@$(MAKE) --no-print-directory -j 2 lint units

units: $(tests)
	@$(bin)/python -m pytest -n 2 --dist loadfile -q tests/unit $(ARGS)

test: $(tests) ## lint and all tests but the weekly ones (ARGS=-n0: in one process)
	@$(MAKE) --no-print-directory -j 2 lint daily

daily: $(tests)
	@$(bin)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

weekly: $(tests) ## templates, examples, manifests, packages, versions, planted faults, a long soak (ARGS='-k deployment': tests only)
	@$(bin)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m weekly $(ARGS)
	@$(if $(ARGS),,$(bin)/python -m lab soak --minutes 20)
	@$(if $(ARGS),,$(MAKE) --no-print-directory package clock matrix mutants)

mutants: $(tests) ## plant each fault of tests/mutants, and see which the tests find (ARGS='relay --jobs 2')
	@$(bin)/python -m tests.mutants $(ARGS)

search: export MACHINE_EXAMPLES ?= 500
search: $(tests) ## other random histories of the protocol each time (MACHINE_EXAMPLES=500; ARGS=--hypothesis-seed=7)
	@$(bin)/python -m pytest -n0 -q tests/integration/test_protocol_machine.py -k whatever_happens $(ARGS)

clock: $(tests) ## the tests that know days, a few seconds into a year
	@TZ=Europe/Berlin $(bin)/python -m tests.clock '2027-01-01 00:00:05' $(ARGS)

fault: $(runtime) ## two minutes of faults of all kinds against a relay, and a verdict (ARGS="--seed 7")
	@$(bin)/python -m lab soak --minutes 2 --short-leases $(ARGS)

matrix: $(tests) ## core tests on the versions that people have (ARGS='oldest newest': some cells)
	@$(bin)/python -m tests.matrix $(ARGS)

lint: $(tests) ## ruff, mypy and the import floors
	@$(bin)/ruff check --quiet --output-format concise $(sources)
	@$(bin)/ruff format --quiet --check $(sources) || { echo "not formatted: run make format" >&2; exit 1; }
	@$(bin)/mypy --no-error-summary
	@$(bin)/lint-imports --no-logo

format: $(tests) ## let ruff lay out the code and mend what it can
	@$(bin)/ruff check --fix $(sources)
	@$(bin)/ruff format $(sources)

docs: $(pages) ## the documentation site, into build/docs
	@$(bin)/sphinx-build -q -W --keep-going -d build/doctrees docs build/docs && echo "build/docs/index.html"

bench: $(tests) ## the relay beside raw Celery, pgbench and XADD (ARGS=write: another bench; ARGS=--help lists them)
	@$(bin)/python -m bench $(or $(ARGS),yardsticks)

package: ## wheel and source distribution, into dist/: built, checked, and the wheel tried in an empty environment
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && rm -rf dist && $(PYTHON) -m venv "$$scratch/tools" && \
	  "$$scratch/tools/bin/python" -m pip --disable-pip-version-check --quiet install --no-compile build twine && \
	  "$$scratch/tools/bin/python" -m build --outdir dist . >"$$scratch/log" 2>&1 || { cat "$$scratch/log"; exit 1; } && \
	  "$$scratch/tools/bin/twine" check --strict dist/* && $(PYTHON) -m venv "$$scratch/empty" && \
	  "$$scratch/empty/bin/python" -m pip --disable-pip-version-check --quiet install --no-compile -c constraints.txt dist/*.whl && \
	  cd "$$scratch" && empty/bin/outbox-tasks --version && empty/bin/celery --help | grep -q outbox && \
	  empty/bin/python -c 'import outbox_tasks as o; [getattr(o, name) for name in o.__all__]; print("the wheel can be used")'

venv: $(tests) $(pages) ## the virtual environment with everything in it

constraints: ## pin the newest versions that fit pyproject.toml and Python 3.11.0, the oldest, anew
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && $(PYTHON) -m venv "$$scratch/venv" && \
	  "$$scratch/venv/bin/python" -m pip --disable-pip-version-check --quiet --quiet install uv && \
	  "$$scratch/venv/bin/uv" pip compile --quiet --universal --fork-strategy fewest --python-version 3.11.0 --no-header --no-annotate \
	    --extra all --extra dev --output-file "$$scratch/new" pyproject.toml && \
	  { grep '^#' constraints.txt; cat "$$scratch/new"; } >"$$scratch/whole" && cat "$$scratch/whole" >constraints.txt

audit: ## known vulnerabilities of the pinned versions; asks the Python package index, so it needs a network
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && $(PYTHON) -m venv "$$scratch/venv" && \
	  "$$scratch/venv/bin/python" -m pip --disable-pip-version-check --quiet --quiet install pip-audit && \
	  "$$scratch/venv/bin/pip-audit" --strict --no-deps --disable-pip --requirement constraints.txt

clean: ## remove the virtual environment, caches and builds
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An interrupted install leaves no stamp, and an environment whose interpreter is gone is made again.
define environment
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Python 3.11 or newer is needed; $(PYTHON) is %d.%d. Try make PYTHON=python3.13" % v[:2])'
	@$(bin)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
endef

$(runtime): pyproject.toml constraints.txt
	$(environment)
	@echo "installing into $(VENV)" >&2
	@$(pip) -e '.[flower,embedded,web]' psutil
	@touch $@

$(tests): pyproject.toml constraints.txt
	$(environment)
	@echo "installing into $(VENV), with what the tests need" >&2
	@$(pip) -e '.[test]'
	@touch $(runtime) $@

$(pages): pyproject.toml constraints.txt
	$(environment)
	@echo "installing into $(VENV), with what the documentation needs" >&2
	@$(pip) -e '.[docs]'
	@touch $@

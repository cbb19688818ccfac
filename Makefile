# Two commands do everything: `make tune` runs the main job, `make test` passes the tests.
PYTHON ?= python3
BIN := .venv/bin
DONE := .venv/.installed

.PHONY: help setup tune loop test check test-all environments slurm browser faults bench bench-ci lint wheel clean

help: ## What there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 16

setup: $(DONE) ## Make .venv once, with everything pinned

# torch first and from constraints.txt: what follows must not pull another build.
# TORCH_INDEX names an index of CPU builds where the default index has CUDA builds only.
$(DONE): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(DONE)

tune: setup ## Tune the example job on this machine's CPUs: a new study each time
	$(BIN)/oppa tune examples/cpu.toml

loop: setup ## Tune, profile, train and report one job on this machine, in runs/loop: ten minutes
	PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/loop.sh

test: setup ## The tests that need minutes and nothing else
	$(BIN)/python -m pytest -m "not slow and not environment and not nightly"

check: setup lint environments test-all bench-ci wheel ## What continuous integration runs

test-all: setup
	$(BIN)/python -m pytest -m "not nightly"

environments: setup ## Make the environments of DeepSpeed's and ColossalAI's runners, some minutes each
	$(BIN)/oppa env create deepspeed
	$(BIN)/oppa env create colossalai

slurm: ## Install Debian's Slurm, for the tests that run on a real one (as root)
	@command -v slurmctld slurmd srun >/dev/null || PATH="$$PATH:/usr/sbin" command -v slurmctld slurmd srun >/dev/null || { \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm slurm-client munge; }

browser: ## Install Debian's Chromium, for the tests of the live page (as root)
	@command -v chromium chromium-browser google-chrome chrome >/dev/null || { \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; }

lint: setup ## Format, lint, strict types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

wheel: setup ## Build wheel and sdist, and test their installed form
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	$(BIN)/python tests/installed.py dist

faults: setup ## Every way to die, five times over, and every pair that `make check` samples
	OPPA_FAULT_REPEATS=5 $(BIN)/python -m pytest -m "faults or nightly" tests

bench: setup ## Speed, as ratios measured side by side
	$(BIN)/oppa bench all

bench-ci: setup ## A short search by the designer, held against its reference in results/ci
	$(BIN)/oppa bench ci

clean: ## Remove what was built (studies stay)
	rm -rf .venv dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

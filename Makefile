# The main targets: `make tune` tunes the example job, `make test` runs the tests.
PYTHON ?= python3
BIN := .venv/bin
DONE := .venv/.installed
PIP := $(BIN)/python -m pip
INSTALL := $(PIP) install --quiet --no-deps
TORCH := $(shell grep '^torch==' constraints.txt)
# Tests run on WORKERS processes; each test starts up to 8 of its own. `make test WORKERS=0` runs all in one process.
WORKERS ?= auto
# Python keeps the bytecode of oppa's modules, which hundreds of processes of the tests would compile again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 8 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder

# `make wheelhouse` collects wheels for this Python and this kind of machine.
WHEELHOUSE ?= wheelhouse
EXTRAS ?= train,plots,command
RESOLUTION ?= lowest-direct
# Ray and what only Ray needs stand in a folder of their own, and not in .venv.
RAY := $(CURDIR)/.ray
RAY_TESTS ?= ray and not nightly
TESTS ?= tests
# `make versions` tests what depends on packages; old packages give warnings, which are no errors there.
VERSIONS_TESTS ?= tests/api tests/client tests/problem tests/protocol tests/report tests/study tests/table \
	tests/control/test_service.py tests/trials/test_command.py tests/tuning/test_search.py

# The lowest torch is that of a tuner without the built-in trainer, which needs the torch of the extra `train`.
ifeq ($(RESOLUTION),lowest-direct)
VERSIONS_TORCH ?= torch==2.8.*
VERSIONS_EXTRAS ?= plots,command
else
VERSIONS_TORCH ?= $(TORCH)
VERSIONS_EXTRAS ?= train,plots,command
endif

.PHONY: help setup lock tune loop test check test-all other-checks nightly environments slurm ray browser faults bench bench-ci lint docs docs-links pictures wheel wheelhouse versions clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 16

setup: $(DONE) ## Create .venv with pinned packages, once

# pip installs no file whose SHA-256 is not in requirements/. torch is chosen first and checked then, because the build that the index prefers
# may be for CPUs or for CUDA. An installed torch of this version stays. Builds for CUDA need the packages of cuda.txt.
# Set TORCH_INDEX to an index of CPU builds if the default index has only CUDA builds.
$(DONE): pyproject.toml $(wildcard requirements/*.txt)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --require-hashes --requirement requirements/packages.txt
	@$(PIP) freeze | grep '^$(TORCH)' >/dev/null || { set -x; \
	$(PIP) download --quiet --no-deps --dest .venv/torch $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH) && \
	$(INSTALL) --require-hashes --no-index --find-links .venv/torch --requirement requirements/torch.txt && rm -r .venv/torch; }
	$(INSTALL) --no-build-isolation --editable .
	@$(PIP) check >/dev/null || { set -x; $(INSTALL) --require-hashes --requirement requirements/cuda.txt; }
	@$(PIP) check
	@touch $(DONE)

lock: ## Write requirements/ from pyproject.toml and constraints.txt, with the hashes of PyPI; needs uv
	uv pip compile pyproject.toml --quiet --extra dev --constraint constraints.txt --universal --python-version 3.11 \
	--generate-hashes --no-annotate --no-header | $(PYTHON) requirements/split.py
	uv pip compile requirements/ray.in --quiet --constraint requirements/packages.txt --universal --python-version 3.11 \
	--generate-hashes --no-annotate --no-header | $(PYTHON) requirements/split.py ray.txt

tune: setup ## Tune the example job on this machine's CPUs, in a new study each time
	$(BIN)/oppa tune examples/cpu.toml

loop: setup ## Tune, profile, train and report one job on this machine, in runs/loop: ten minutes
	PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/loop.sh

test: setup ## Run the tests that take minutes and need no extra software
	$(PYTEST) -m "not slow and not environment and not nightly"

check: setup ## Run the checks of continuous integration
	$(MAKE) --jobs 2 --output-sync environments
	$(MAKE) --jobs 2 test-all other-checks

test-all: setup
	$(PYTEST) -m "not nightly"

# Many tests wait for processes or for Slurm. The other checks take what the tests leave of the CPUs.
other-checks: setup
	nice -n 19 $(MAKE) --output-sync lint docs bench-ci wheel

nightly: setup ## Run the tests that `make check` leaves out; TESTS=tests/training runs those of a folder
	$(PYTEST) -m nightly $(TESTS)

environments: environment-colossalai environment-deepspeed ## Create the environments of the DeepSpeed and ColossalAI runners, some minutes each

environment-%: setup
	$(BIN)/oppa env create $*

slurm: ## Install Debian's Slurm for the tests that need it (as root)
	@command -v slurmctld slurmd srun >/dev/null || PATH="$$PATH:/usr/sbin" command -v slurmctld slurmd srun >/dev/null || { \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm slurm-client munge; }

$(RAY)/.installed: requirements/ray.txt
	rm -rf $(RAY)
	$(INSTALL) --require-hashes --target $(RAY) --requirement requirements/ray.txt
	@touch $@

ray: setup $(RAY)/.installed ## Test the launcher `ray` on a cluster of three local nodes; RAY_TESTS=ray runs all of its tests
	PYTHONPATH=$(RAY) $(PYTEST) -m "$(RAY_TESTS)" --maxprocesses 1 tests/launchers

browser: ## Install Debian's Chromium for the tests of the live page (as root)
	@command -v chromium chromium-browser google-chrome chrome >/dev/null || { \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; }

lint: setup ## Check format, lint, strict types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: setup ## Build the documentation site in build/docs; a warning, such as a link to nothing, is an error
	$(BIN)/python -m sphinx -W --keep-going -q -c docs . build/docs

docs-links: setup ## Check that the documentation's links to other sites still work
	$(BIN)/python -m sphinx -q -c docs -b linkcheck . build/links

pictures: setup ## Draw the documentation's pictures from real commands and pages
	$(BIN)/python docs/pictures.py

wheel: setup ## Build wheel and sdist of oppa-tuner and oppa-client, and test an installation of each
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	$(BIN)/python -m build --no-isolation --outdir dist client >/dev/null
	$(BIN)/python tests/installed.py dist

wheelhouse: $(DONE) ## Collect wheels of oppa-tuner[$(EXTRAS)], oppa-client and all that they need, for machines without a network
	$(BIN)/python -m build --no-isolation --wheel --outdir $(WHEELHOUSE) . >/dev/null
	$(BIN)/python -m build --no-isolation --wheel --outdir $(WHEELHOUSE) client >/dev/null
	$(PIP) download --quiet --only-binary :all: --dest $(WHEELHOUSE) --constraint constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$$(ls $(WHEELHOUSE)/oppa_tuner-*.whl)[$(EXTRAS)]"
	cp constraints.txt $(WHEELHOUSE)

versions: ## Test in .versions with the lowest versions that pyproject.toml allows, or RESOLUTION=highest; needs uv
	uv venv --quiet --clear --python $(PYTHON) .versions
	$(if $(TORCH_INDEX),uv pip install --quiet --python .versions --no-deps --index-url $(TORCH_INDEX) '$(VERSIONS_TORCH)')
	uv pip install --quiet --python .versions --resolution $(RESOLUTION) --editable '.[$(VERSIONS_EXTRAS)]' '$(VERSIONS_TORCH)'
	uv pip install --quiet --python .versions hypothesis pytest pytest-timeout accelerate lightning transformers '$(VERSIONS_TORCH)'
	OMP_NUM_THREADS=1 .versions/bin/python -m pytest --override-ini filterwarnings=default -m "not slow and not environment and not nightly" $(VERSIONS_TESTS)

faults: setup ## Repeat the fault tests five times, try each law on 200 examples, and attack oppa with 20,000 hostile inputs
	OPPA_FAULT_REPEATS=5 $(PYTEST) -m "faults or nightly or hypothesis" --hypothesis-profile whole tests/faults tests/hostile
	OPPA_FAULT_REPEATS=5 $(PYTEST) -m "faults or hypothesis" --hypothesis-profile whole --ignore tests/faults --ignore tests/hostile tests
	$(BIN)/oppa bench faults

bench: setup ## Measure speed, as ratios of interleaved runs
	$(BIN)/oppa bench all

bench-ci: setup ## Run a short search by the designer, and compare it with its reference in results/ci
	$(BIN)/oppa bench ci

clean: ## Remove build outputs; keep studies
	rm -rf .venv .ray .versions dist wheelhouse .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# Each target sets up what it needs on a fresh machine: a virtual environment in .venv, pinned by constraints.txt.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check install --quiet -c constraints.txt
JOBS   ?= 2

export HF_HUB_OFFLINE = 1
export TOKENIZERS_PARALLELISM = false

.PHONY: demo test check bench docs types lint layers clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and by the constraint: a range would fetch a build for hardware that is not here.
$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) "torch" && $(PIP) -e . && touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) -e ".[dev,parquet,s3,tensorboard,wandb]" && touch $@

# What the tests use of the system: a C++ compiler for torch.compile, network namespaces as machines, real Slurm.
TOOLS    := g++ ip slurmctld slurmd munged
PACKAGES := g++ iproute2 slurm-wlm slurm-client munge
$(VENV)/.system: Makefile | $(BIN)/python
	@( PATH="$$PATH:/usr/sbin:/sbin"; for tool in $(TOOLS); do command -v $$tool >/dev/null || exit 1; done ) \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null; } \
		|| echo "some of these are missing, and tests need them: $(PACKAGES)"
	@touch $@

demo: $(VENV)/.base
	$(BIN)/protolith demo

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q tests

check: $(VENV)/.dev $(VENV)/.system lint types layers

lint: $(VENV)/.dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/step.py

docs: $(VENV)/.dev
	$(BIN)/python -m protolith.config.reference docs/reference
	$(BIN)/python -m protolith.cli.reference docs/reference

clean:
	rm -rf $(VENV) demo output

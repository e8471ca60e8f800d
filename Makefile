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
	$(PIP) -e ".[dev,parquet,tensorboard,wandb]" && touch $@

# torch.compile on a CPU needs a C++ compiler.
$(VENV)/.system: | $(BIN)/python
	@command -v g++ >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
		&& apt-get install -y -qq --no-install-recommends g++ >/dev/null; } || echo "g++ is missing: install it to test compiling"
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

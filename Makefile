# Each target makes .venv by itself when it is missing or older than what it is made from, and installs no more than it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
MADE_FROM := pyproject.toml constraints.txt

.PHONY: demo test check bench changelog clean

demo: $(VENV)/.demo
	$(BIN)/mopbt run adult-linear --out runs/demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/ranking.py
	$(BIN)/python benchmarks/hypervolume.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/population.py

changelog: $(VENV)/.check
	$(BIN)/towncrier build --yes

clean:
	rm -rf $(VENV)

$(VENV)/.made: $(MADE_FROM)
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

# PyTorch comes first and pinned, so that no other package chooses a build of it.
$(VENV)/.torch: $(VENV)/.made
	$(PIP) torch
	touch $@

$(VENV)/.demo: $(VENV)/.made
	$(PIP) --editable ".[demo]"
	touch $@

$(VENV)/.test: $(VENV)/.torch
	$(PIP) --editable ".[test]"
	touch $@

$(VENV)/.check: $(VENV)/.torch
	$(PIP) --editable ".[check,test]"
	touch $@

$(VENV)/.bench: $(VENV)/.torch
	$(PIP) --editable ".[bench]"
	$(PIP) --no-deps syne-tune
	touch $@

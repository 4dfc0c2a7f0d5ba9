# Each target creates .venv if it is missing or older than its sources, and installs only what the target needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The versions to install: those that are tested, or constraints-lowest.txt or constraints-newest.txt.
CONSTRAINTS ?= constraints.txt
MADE_FROM := pyproject.toml $(CONSTRAINTS)
# uv installs faster than pip. `make UV= demo` uses pip although uv is available.
UV := $(shell command -v uv 2>/dev/null)
ifneq ($(UV),)
CREATE_VENV := $(UV) venv --quiet --clear --python $(PYTHON) $(VENV)
INSTALL := $(UV) pip install --quiet --python $(BIN)/python --constraint $(CONSTRAINTS)
# uv does not read the settings of pip.
ifneq ($(PIP_FIND_LINKS),)
UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export UV_FIND_LINKS
endif
else
# Earlier versions of pip do not read dependency groups.
CREATE_VENV := $(PYTHON) -m venv --clear $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)
endif
# The extras of the package that its tests use.
TESTED := bo,lightning,mlflow,optuna,pandas,plot,ray,sklearn,tensorboard,torch,transformers,wandb

.PHONY: demo test test-all attack check bench coverage mutation trace docs experiments dist release clean

# MO-PBT and random search train the same networks for the same number of steps, on real data from the package.
demo: $(VENV)/.demo
	$(BIN)/mopbt run adult-fairness --scale small --out runs/demo
	$(BIN)/mopbt run adult-fairness --scale small --algorithm random-search --out runs/demo-random-search
	$(BIN)/mopbt front runs/demo --against runs/demo-random-search --plot runs/demo.png

# Run `make test` before every commit and `make test-all` before every push. Each file runs in one process, so that its tests
# share the processes they start. Files run in the order of tests/conftest.py, the longest first.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 10 --durations-min 0

test: $(VENV)/.test
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.test
	$(PYTEST)

# Power losses, failing calls, hostile worlds, lifecycles, mutated inputs: at most an hour on two cores. Rerun to continue after an
# interruption. ARGS='--sample 0.05 --seed 7' takes a part.
attack: $(VENV)/.test
	$(BIN)/python tests/attack/command.py $(ARGS)

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# All benchmarks run, even if one misses its target. BENCH_JSON collects the rows of all, and a table of them is printed at the end.
BENCHMARKS := startup trial_cost ranking hypervolume overhead population schedulers history cluster report memory
BENCH_JSON ?= build/bench.json
bench: $(VENV)/.bench
	rm -f $(BENCH_JSON)
	missed=; for name in $(BENCHMARKS); do \
	  $(BIN)/python benchmarks/$$name.py --json $(BENCH_JSON) || missed="$$missed $$name"; \
	done; \
	$(BIN)/python benchmarks/table.py $(BENCH_JSON); \
	if [ -n "$$missed" ]; then echo "missed a target or failed:$$missed" >&2; exit 1; fi

# Measurements that must not get worse, see baselines/README.md. ARGS=--record writes a baseline.
# `coverage` passes further arguments to pytest: make coverage ARGS='-m "not slow"'.
coverage: $(VENV)/.baselines
	$(BIN)/python baselines/measure_coverage.py $(ARGS)

mutation: $(VENV)/.baselines
	$(BIN)/python baselines/measure_mutation.py $(ARGS)

trace: $(VENV)/.baselines
	$(BIN)/python baselines/measure_trace.py $(ARGS)

# Build the site in build/site. The programs of its gallery are executed: ARGS=--skip-gallery takes seconds.
docs: $(VENV)/.docs
	$(BIN)/python docs/site/build.py $(ARGS)

# Run all comparisons in the scale `small`, in comparisons/small: many hours on two cores. Stop at any time and rerun to resume.
# If one cannot run, for example because its data are missing, the others still do.
SCALE ?= small
EXPERIMENTS := tables-5-7-tabular tables-5-7-images $(filter-out tables-%,$(basename $(notdir $(wildcard experiments/*.toml))))
experiments: $(VENV)/.bench
	mkdir -p comparisons/$(SCALE)
	failed=; for name in $(EXPERIMENTS); do \
	  $(BIN)/mopbt compare experiments/$$name.toml --scale $(SCALE) --out comparisons/$(SCALE)/$$name --reuse comparisons/$(SCALE); \
	  case $$? in 0) ;; 130|143) exit 130 ;; *) failed="$$failed $$name" ;; esac; \
	done; \
	if [ -n "$$failed" ]; then echo "not complete:$$failed" >&2; exit 1; fi

# Build sdist and wheel in dist/, and check what PyPI checks, and that the wheel is small.
dist: $(VENV)/.release
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	@test -z "$$(find dist -name '*.whl' -size +2M)" || { echo 'the wheel is larger than 2 MB' >&2; exit 1; }

# Check the distributions in clean environments, then tag. ARGS=--no-tag does not tag, ARGS='--only torch sdist' repeats some checks.
release: dist
	$(BIN)/python tools/release.py --constraints $(CONSTRAINTS) $(ARGS)

clean:
	rm -rf $(VENV)

$(VENV)/.made: $(MADE_FROM)
	$(CREATE_VENV)
	touch $@

# Install PyTorch first and pinned, so that no other package selects a build of it.
$(VENV)/.torch: $(VENV)/.made
	$(INSTALL) torch
	touch $@

$(VENV)/.demo: $(VENV)/.torch
	$(INSTALL) --editable ".[demo]"
	touch $@

$(VENV)/.test: $(VENV)/.torch
	$(INSTALL) --editable ".[$(TESTED)]" --group test
	touch $@

$(VENV)/.baselines: $(VENV)/.torch
	$(INSTALL) --editable ".[$(TESTED)]" --group baselines
	touch $@

$(VENV)/.check: $(VENV)/.torch
	$(INSTALL) --editable ".[$(TESTED)]" --group check --group test
	touch $@

$(VENV)/.release: $(VENV)/.made
	$(INSTALL) --group release
	touch $@

$(VENV)/.docs: $(VENV)/.torch
	$(INSTALL) --editable ".[lightning,plot,ray,sklearn,torch]" --group docs
	touch $@

$(VENV)/.bench: $(VENV)/.torch
	$(INSTALL) --editable ".[bo,optuna,plot,ray,torch]" --group bench
	$(INSTALL) --no-deps syne-tune
	touch $@

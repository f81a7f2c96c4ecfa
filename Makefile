# `make test`, `make reproduce` and `make bench` need Python 3.11 or newer and make; they do the rest themselves.
#
#   PYTHON=python3.12     the interpreter that makes the environment
#   PIP_ARGS="..."        more arguments for pip, for instance an index that holds a CPU-only torch
#   OUT=reproduction      where `make reproduce` writes
#   WORKERS=2             processes that run the tests
#   TORCH=2.6.0           the version of torch for `make test-torch`
#   BENCH=bench           where `make bench` writes
#   DEVICE=cpu            what `make bench` times, cpu or cuda
#   TFP=path/to/python    an interpreter with TensorFlow Probability, for `make bench` (benchmarks/README.md)

PYTHON ?= python3
PIP_ARGS ?=
VENV ?= .venv
OUT ?= reproduction
WORKERS ?= 2
TORCH ?= 2.6.0
BENCH ?= bench
DEVICE ?= cpu
TFP ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LIBRARY_STAMP := $(VENV)/.compiled
TYPES := $(VENV)/types.log
SPHINX := $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going
NATIVE := src/powerspherical/kernels
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
# One torch thread for each worker: several workers with several threads each would fight for the cores. A file stays on
# one worker, because its fixtures (the site, trained models) are made once per worker.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# They run every code block of the README, the pages and the docstrings, and the examples, and check tables and links.
DOCUMENTED := src paper/src tests/docs tests/test_docs.py tests/test_examples.py tests/test_migration.py \
  tests/test_tables.py

# pip does not compile the bytecode of 14,000 modules, most of which no test imports. Python does at their first import,
# unless this variable forbids it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup native lint style types test test-fast test-paper test-docs test-torch docs docs-fast reproduce bench clean

help:
	@echo "make test       set up, lint and run the tests"
	@echo "make test-fast  one case of each test, without the slow ones, in about a minute; no linting"
	@echo "make test-paper the tests of the paper's experiments alone; make test runs them too"
	@echo "make test-docs  the tests of the documentation, the docstrings and the examples alone; make test runs them too"
	@echo "make test-torch the fast tests with torch $(TORCH), in an environment of its own (several GB); no part of make test"
	@echo "make docs       set up, run all documented code, and build the site with its gallery in build/docs"
	@echo "make docs-fast  build the site alone, without running the gallery"
	@echo "make reproduce  set up, remake the paper's figures and tables in $(OUT)/, and name the report"
	@echo "make bench      set up, and time draws and bottlenecks beside the peers, into $(BENCH)/ (minutes)"
	@echo "make setup      make $(VENV) and install both packages with all that their tests need"
	@echo "make native     compile the C library again, if its sources have changed"
	@echo "make lint       ruff and mypy"
	@echo "make dist       build the source distribution and the wheel in dist/, and check them"
	@echo "make wheels     build the wheels for five platforms in dist/, check them, and run those that can run here"
	@echo "make clean      remove caches and builds ($(VENV), $(OUT) and $(BENCH) stay)"

setup: $(STAMP)

# The stamp makes every later run skip the installation, until what is to be installed changes.
$(STAMP): pyproject.toml paper/pyproject.toml constraints.txt hatch_build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "the pinned environment needs Python 3.11 or newer. Name one with: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: its venv or ensurepip module is missing." >&2; \
	  echo "On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing powerspherical, the paper's experiments and what their tests need (the first time downloads torch)"
	@$(PIP) --upgrade pip || echo "going on with pip as it is; recent versions install faster"
	@$(PIP) --no-compile -c constraints.txt -e '.[test]' -e ./paper
	@touch $@ $(LIBRARY_STAMP)

# The installation compiles the library too. Without a C compiler, draws take torch operations instead.
native: $(LIBRARY_STAMP)

$(LIBRARY_STAMP): $(wildcard $(NATIVE)/c/*.[ch]) $(NATIVE)/build.py | $(STAMP)
	@$(BIN)/python $(NATIVE)/build.py
	@touch $@

lint: style types

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# mypy takes one core for some 15 seconds, so it runs beside the tests and is reported after them.
# Without paths pytest runs all `testpaths` of pyproject.toml, which hold those of test-paper and test-docs.
test: style native
	@$(BIN)/mypy >$(TYPES) 2>&1 & types=$$!; \
	$(PYTEST); tests=$$?; \
	wait $$types; types=$$?; echo "mypy:"; cat $(TYPES); \
	test $$tests = 0 || echo "make test: pytest failed, see above" >&2; \
	test $$types = 0 || echo "make test: mypy failed, see above" >&2; \
	exit $$((tests || types))

test-fast: native
	$(PYTEST) --fast

test-paper: native
	$(PYTEST) paper

test-docs: native
	$(PYTEST) $(DOCUMENTED)

test-torch:
	@$(PYTHON) tools/test_versions.py $(TORCH) --workers $(WORKERS)

docs: test-docs
	$(SPHINX) docs build/docs

docs-fast: native
	$(SPHINX) -D plot_gallery=0 docs build/docs-fast

reproduce: native
	@echo "remaking the paper's figures and tables in $(OUT)/, in minutes"
	@$(BIN)/powerspherical reproduce all --quick --out $(OUT)

# The peers stay out of the environment: tests and experiments look whether the authors' package is installed.
bench: native
	@test -d $(BENCH)/peers || $(PIP) --no-deps --target $(BENCH)/peers power-spherical==0.8.1 \
	  || echo "the authors' package could not be had"
	@PYTHONPATH=$(BENCH)/peers $(BIN)/python benchmarks/sampling.py --device $(DEVICE) --out $(BENCH) $(if $(TFP),--tfp $(TFP))
	@PYTHONPATH=$(BENCH)/peers $(BIN)/python benchmarks/bottleneck.py --device $(DEVICE) --out $(BENCH)

# The tools have an environment of their own: constraints.txt does not pin them.
.PHONY: dist
DIST_TOOLS := build/dist-tools

$(DIST_TOOLS)/.installed:
	@$(PYTHON) -m venv $(DIST_TOOLS)
	@$(DIST_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) \
	  build check-wheel-contents lief twine ziglang
	@touch $@

dist: $(DIST_TOOLS)/.installed
	rm -rf dist
	$(DIST_TOOLS)/bin/python -m build --outdir dist
	$(DIST_TOOLS)/bin/twine check --strict dist/*
	$(DIST_TOOLS)/bin/check-wheel-contents dist/*.whl

# Not part of any test: minutes, and downloads.
.PHONY: wheels
wheels: $(DIST_TOOLS)/.installed
	$(DIST_TOOLS)/bin/python tools/wheels.py

clean:
	rm -rf build dist src/powerspherical/sphere.native docs/auto_gallery .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests paper -name __pycache__ -type d -prune -exec rm -rf {} +

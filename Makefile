# Most targets create .venv; later calls reuse it. Needs Python 3.11 or newer as `python3`, or pass
# another one: make test PYTHON=python3.12

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
# -qq: errors only; the targets below print what they install
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo docs pictures test test-all test-oldest test-newest test-wheel lint bench bench-measures bench-gpu clean

help:
	@echo "make demo    a study of 138 small networks on digits with wrong labels, with a page, and a comparison of SAM with SGD"
	@echo "make pictures   the pictures of README and docs, and the runs that they show (needs chromium; ten minutes)"
	@echo "make docs    the docs site in docs/_build/html, without warnings"
	@echo "make test    lint, types and tests             (ARGS='-k sam' for some of them)"
	@echo "make test-all   the same with the slow tests, which repeat claims in more cases; before a release"
	@echo "make test-oldest   all tests on the oldest torch that steppe supports (gigabytes: PyPI's torch comes with CUDA)"
	@echo "make test-newest   the same on the newest torch that pip finds"
	@echo "make test-wheel   the wheels alone in an empty environment: every command, the built-in study, the examples"
	@echo "make lint    ruff and mypy only"
	@echo "make bench   time a step against the ideal and against pytorch_optimizer"
	@echo "make bench-measures   time measures against PyHessian, curvlinops and the papers' procedure (ten minutes)"
	@echo "make bench-gpu   time steps, curvature, measures, ensembles and epochs on a GPU, with the installed torch"
	@echo "make clean   remove .venv, builds and caches; keeps studies and data"

# two answers: whether flat networks err less (trained here), and whether SAM is worth its cost (from a committed record)
demo: .venv/ready
	@$(BIN)/steppe study run $(ARGS)
	@echo
	@echo "Should I use SAM on these data? 'steppe compare docs/comparisons/digits.yaml' takes 16 minutes; its record says:"
	@echo
	@$(BIN)/steppe compare report docs/comparisons/digits

pictures: .venv/ready
	$(BIN)/python docs/pictures/make.py $(ARGS)

# -W: a warning, such as a link that leads nowhere, is an error; -E: of every page, not only of changed ones
docs: .venv/ready-for-docs
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html -c docs $(ARGS) . docs/_build/html
	@echo docs/_build/html/index.html

# two test processes on two cores: one thread each is fastest; worksteal keeps most files, and their fixtures, in one process
test test-all: export OMP_NUM_THREADS ?= 1
# pytest keeps its rewritten test modules, also where the environment says otherwise: 9 s per process at the next run
test test-all: export PYTHONDONTWRITEBYTECODE :=
# no AMX: some virtual machines announce it without granting it, and torch's bf16 products die there of SIGILL
test test-all: export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
test: lint
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" --hypothesis-profile quick $(ARGS)

test-all: lint
	$(BIN)/pytest -n 2 --dist worksteal $(ARGS)

# other versions of torch, each in an environment of its own: make test-newest PYTHON=python3.13
test-oldest: TORCH := torch==2.6.0
test-newest: TORCH := torch
test-oldest test-newest: export OMP_NUM_THREADS ?= 1
test-oldest test-newest: export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
test-oldest test-newest:
	$(PYTHON) -m venv .venv-$@
	sed '/^torch==/d' constraints.txt > .venv-$@/constraints.txt
	.venv-$@/bin/python -m pip install -qq -c .venv-$@/constraints.txt $(TORCH) -e '.[dev]' -e ./papers
	.venv-$@/bin/python -m pip install -qq --no-deps -r requirements-oracles.txt
	.venv-$@/bin/python -m pytest -n 2 --dist worksteal $(ARGS)

# a clean environment outside the source; ten idle minutes, most of them pip and the built-in study
test-wheel:
	$(PYTHON) tests/check_wheel.py --folder .venv-$@ $(ARGS)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready-to-bench
	$(BIN)/python benchmarks/step_overhead.py $(ARGS)

bench-measures: .venv/ready
	$(BIN)/python benchmarks/measures.py $(ARGS)

# from source and without .venv: a machine with a GPU has its own torch, and may have no network
bench-gpu:
	PYTHONPATH=src $(PYTHON) benchmarks/gpu.py $(ARGS)

clean:
	rm -rf .venv .venv-* build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src papers tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# steppe and steppe-papers, both editable
.venv/ready: pyproject.toml papers/pyproject.toml constraints.txt requirements-oracles.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "steppe needs Python 3.11 or newer: make PYTHON=...")'
	@echo "installing steppe, steppe-papers and their development tools into .venv (torch is large; once)"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) -e '.[dev]' -e ./papers
	@$(INSTALL) --no-deps -r requirements-oracles.txt
	@touch $@

.venv/ready-to-bench: .venv/ready
	@echo "installing the benchmarks' peers into .venv"
	@$(INSTALL) -e '.[dev,bench]'
	@touch $@

.venv/ready-for-docs: .venv/ready
	@echo "installing sphinx into .venv"
	@$(INSTALL) -e '.[dev,docs]'
	@touch $@

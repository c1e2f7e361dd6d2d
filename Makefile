# One command each, the same on a laptop and in CI. Needs make and Python >= 3.11, nothing else.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# One thread: the demo compares weights bit for bit, and the order of sums depends on the number of threads.
export OMP_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1

.PHONY: help demo test lint type docs build clean venv

help:
	@echo 'make demo   a training run survives reclaims on a local cloud, under a real Airflow (KEEP=1 leaves it running)'
	@echo 'make test   all tests'
	@echo 'make lint type docs build clean'

# What the demo needs; the marker file is as old as the last installation.
$(VENV)/.installed: pyproject.toml scripts/precheck.py
	@$(PYTHON) scripts/precheck.py .
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[airflow,localcloud,examples]'
	@touch $@

# What a contributor needs besides.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group test --group lint --group type --group docs --group build
	@touch $@

venv: $(VENV)/.installed-dev

demo: $(VENV)/.installed
	$(BIN)/python scripts/demo.py $(if $(KEEP),--keep) $(DEMO_ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/shellcheck .ci/run

type: $(VENV)/.installed-dev
	$(BIN)/mypy
	$(BIN)/mypy scripts/*.py dags/trainers/*.py

docs: $(VENV)/.installed-dev
	$(BIN)/sphinx-build --nitpicky --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo 'docs/_build/html/index.html'

build: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python scripts/check_wheel.py dist

clean:
	rm -rf .demo build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

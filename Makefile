# Everything on a machine that has Python (3.11 or newer) and make: the environment is made when first needed and again
# only when its description changes.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed
JOBS ?= auto

.PHONY: reproduce test lint types check bench clean

reproduce: $(INSTALLED)
	$(BIN)/lengthlens tasks

test: lint types check

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# One thread for each worker: two single-threaded workers are quicker than one with two threads.
check: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(JOBS) --doctest-modules tests tasks models probes analyses registry.py

bench: $(INSTALLED)
	$(BIN)/python benchmarks/sampling.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lengthlens needs Python 3.11 or newer, and this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

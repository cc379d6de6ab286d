# Everything on a machine that has Python (3.11 or newer) and make: the environment is made when first needed and again
# only when its description changes.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed
JOBS ?= auto

.PHONY: reproduce test lint types check bench clean

# What exists so far: tasks and their complexity, the verdict on every task and embedding, POLA, and one trained run
# that is exact at ten times its training length. Results go to out/; what is there already is not trained again.
reproduce: $(INSTALLED)
	$(BIN)/lengthlens tasks
	$(BIN)/lengthlens src parity --max-scale 8 --search --arity 3 --plot out/src-parity.png
	$(BIN)/lengthlens pola --target prefix-sum --scheme relative --train --plot out/pola.png
	$(BIN)/lengthlens verdict --all --plot out/verdict.png > out/verdict.txt
	$(BIN)/lengthlens train --task parity-cot --scheme ideal --store out/runs
	$(BIN)/lengthlens evaluate parity-cot_ideal --store out/runs --lengths 10,20,50,100 --plot out/extrapolation.png
	@echo "Figures are in out/: src-parity.png pola.png verdict.png extrapolation.png"

test: lint types check

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# One thread for each worker: two single-threaded workers are quicker than one with two threads.
check: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(JOBS) --doctest-modules --ignore tests/fixtures tests tasks models probes analyses commands registry.py lazy.py

# Side by side with peers; prints ratios and peak memory. See the head of each file for its options.
bench: $(INSTALLED)
	for benchmark in benchmarks/*.py; do echo "== $$benchmark"; $(BIN)/python $$benchmark || exit 1; done

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lengthlens needs Python 3.11 or newer, and this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

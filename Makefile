# Everything on a machine that has Python (3.11 or newer) and make: the environment is made when first needed and again
# only when its description changes.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed
JOBS ?= auto
PRESET ?= quick
FUZZ_JOBS ?= 2
APART = tests/test_devices.py
# Tests compare with what CPUs gave, bit for bit, so that GPUs are out of sight; but for those of test-gpu.
CPU = OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
CODE = $(wildcard tasks/*.py models/schemes/*.py theory/*.py analyses/*.py)

# Compiled modules are kept: without them each of the processes that tests start compiles the package anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: reproduce test test-slow test-gpu lint types check apart bench fuzz faults docs docs-serve notebooks dist clean

# From nothing to the page, in ten minutes on two cores: train, evaluate, probe, judge, draw. Results go to out/; what is
# there already is not done again. PRESET=smoke is a minute, PRESET=full is for a GPU or a cluster.
reproduce: $(INSTALLED) out/figures/src-parity.png out/figures/verdict.png
	$(BIN)/lengthlens tasks
	$(BIN)/lengthlens reproduce --preset $(PRESET) --out out

# What needs no training: it follows from the code alone, and takes seconds.
out/figures/src-parity.png: $(INSTALLED) $(CODE)
	$(BIN)/lengthlens src parity --max-scale 8 --search --arity 3 --plot $@

out/figures/verdict.png: $(INSTALLED) $(CODE)
	mkdir -p out
	$(BIN)/lengthlens verdict --all --plot $@ > out/verdict.txt

# All at once: types and tests on pretended GPUs take a process each, the others two.
test: $(INSTALLED)
	$(MAKE) -j 4 lint types check apart

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# One thread for each worker: two single-threaded workers are quicker than one with two threads. Tests on pretended GPUs
# have a process of their own (tests/conftest.py).
check: $(INSTALLED)
	$(CPU) $(BIN)/pytest -q -n $(JOBS) --dist loadfile -m "not slow and not long" --doctest-modules --ignore tests/fixtures --ignore $(APART) --ignore tests/pretended.py tests tasks models theory runs probes analyses studies inside commands plugins errors.py values.py files.py parallel.py notebook.py

apart: $(INSTALLED)
	$(CPU) $(BIN)/pytest -q -m "not slow and not long" $(APART)

# Stress: many kills, every verdict. Minutes.
test-slow: $(INSTALLED)
	$(CPU) $(BIN)/pytest -q -n $(JOBS) -m slow --ignore $(APART) tests
	$(CPU) $(BIN)/pytest -q -n $(JOBS) -m slow $(APART)

# For who has a GPU: what only a GPU can show, and the same tests as on the pretended ones. Nobody has run it yet.
test-gpu: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m cuda $(APART)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m cuda tests/test_gpu.py; test $$? -eq 0 -o $$? -eq 5
	$(BIN)/lengthlens train --task copy --scheme lbpe --device cuda --steps 200 --set deterministic=true --store out/gpu

# 20,000 damaged files, 2,000 argument lists, 2,000 bundles and 132 plug-ins, in a sandbox without root's rights; minutes. See tests/fuzz/.
fuzz: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzzer.py --jobs $(FUZZ_JOBS) --out tests/fuzz/found.json

# Kills, full disks, dying workers and schedulers; minutes.
faults: $(INSTALLED)
	$(CPU) $(BIN)/pytest -q -m long tests/test_faults.py

# Side by side with peers; prints ratios and peak memory. See the head of each file for its options.
bench: $(INSTALLED)
	for benchmark in $(filter-out %/common.py,$(wildcard benchmarks/*.py)); do echo "== $$benchmark"; $(BIN)/python $$benchmark || exit 1; done

# The site, strictly: a broken link or reference fails. Tutorials are run for it; a few minutes. out/docs/index.html
docs: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -b html -c docs . out/docs
	printf '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">lengthlens</a>\n' > out/docs/index.html

docs-serve: docs
	$(BIN)/python -m http.server --directory out/docs 8000

# The tutorials as notebooks, in out/notebooks.
notebooks: $(INSTALLED)
	mkdir -p out/notebooks && cp notebooks/*.py out/notebooks
	cd out/notebooks && for script in 0*.py; do $(abspath $(BIN))/sphinx_gallery_py2jupyter $$script; done

# What would be published: source distribution and wheel, in dist/.
dist: $(INSTALLED)
	rm -rf dist && $(BIN)/python -m build --outdir dist

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lengthlens needs Python 3.11 or newer, and this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist docs/generated docs/tutorials *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The whole project in a few words: `make book` builds the site, `make test` proves it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
PORT ?= 8000
SITE := _build/html
PAGES := tests/test_notebooks.py tests/test_numbers.py
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export DERIVED_STARTED := $(or $(DERIVED_STARTED),$(shell date +%s))

.PHONY: help setup book serve test quick lint types unit notebooks site mutants benchmarks format refresh clean

help:
	@echo 'make book        set up and build the site'
	@echo 'make serve       build it and show it on http://localhost:$(PORT)'
	@echo 'make test        set up and run everything: style, types, unit tests, notebooks, strict build, site tests'
	@echo 'make quick       the two-minute part: style, types, the fast unit tests'
	@echo 'make mutants     plant errors in the package and show which test catches each'
	@echo 'make benchmarks  time and memory on this machine, as tables'
	@echo 'make refresh     re-run and normalise every chapter'
	@echo 'make format      let ruff lay out the code'
	@echo 'make clean       remove what was built, the virtual environment included'

setup: $(READY)

# Runs again only when what it installs has changed.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'setting up $(VENV): some minutes, the first time'
	$(BIN)/python -m pip install -qq --requirement requirements.txt --editable .
	@touch $@

book: $(READY)
	$(BIN)/jupyter-book build . -W -n --keep-going
	@echo "The book is at $(CURDIR)/$(SITE)/index.html (make serve shows it)."

serve: book
	@echo "http://localhost:$(PORT) shows the book; Ctrl-C ends."
	$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory $(SITE)

test: lint types unit notebooks site

quick: lint types
	DERIVED_SUITE="quick 2" $(BIN)/pytest tests --ignore=tests/site -m "not slow and not browser" -n $(WORKERS) -q

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy

unit: $(READY)
	DERIVED_SUITE="unit 12" $(BIN)/pytest tests $(addprefix --ignore=,tests/site $(PAGES)) -n $(WORKERS)

# one worker: kernels that start together race for ports
notebooks: $(READY)
	DERIVED_SUITE="notebooks 12" $(BIN)/pytest --nbval $(PAGES) book

# builds the site strictly for itself
site: $(READY)
	DERIVED_SUITE="site 6" $(BIN)/pytest tests/site

mutants: $(READY)
	$(BIN)/python -m tests.mutants

benchmarks: $(READY)
	for script in tests/benchmarks/[a-z]*.py; do $(BIN)/python $$script || exit 1; done

refresh: $(READY)
	$(BIN)/python book/_tools/refresh

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf _build $(VENV) build dist lib/derived.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Every target works from a fresh clone: the virtual environment is made and filled on the way.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check
SOURCES := forebay buffer runtime gc testing

# A strict editable install links files one by one (plain editable mode hides the mapped folders from type checkers),
# so it is renewed whenever a source file appears or goes, as well as when pyproject.toml changes.
LAYOUT := $(shell find $(SOURCES) -name '*.py' | LC_ALL=C sort | cksum | cut -d' ' -f1)
INSTALLED := $(VENV)/.installed-$(LAYOUT)

.DEFAULT_GOAL := help
.PHONY: help dev demo test test-slow lint format bench clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.dependencies: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=24" "setuptools>=77"
	$(PIP) --no-build-isolation --editable ".[dev]" --config-settings editable_mode=strict
	touch $@

$(INSTALLED): $(VENV)/.dependencies
	rm -f $(VENV)/.installed-*
	$(PIP) --no-build-isolation --no-deps --editable . --config-settings editable_mode=strict
	touch $@

dev: $(INSTALLED) ## Make .venv with forebay and everything needed to work on it

demo: $(INSTALLED) ## Watch forebay at work, end to end
	$(BIN)/forebay demo

test: $(INSTALLED) ## Run the tests, on all processors (PYTEST="-k register" narrows them)
	$(BIN)/pytest -m "not slow" -n auto --dist loadfile $(PYTEST)

test-slow: $(INSTALLED) ## Run the long forms of the tests
	$(BIN)/pytest -m slow $(PYTEST)

lint: $(INSTALLED) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd tests && ../$(BIN)/mypy --config-file ../pyproject.toml  # from the top folder, mypy would find forebay/ alone

format: $(INSTALLED) ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## Measure, as ratios to ceilings taken in the same run
	$(BIN)/python benchmarks

clean: ## Remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Every target works from a fresh clone: the virtual environment is made and filled on the way.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --disable-pip-version-check
EDITABLE := --no-build-isolation --config-settings editable_mode=strict --editable
LOWEST_EXTRAS := s3,fast,spark,java,delta,iceberg,cli,dev-server,testing
EXTRAS := $(LOWEST_EXTRAS),metrics
SOURCES := forebay buffer runtime gc testing
# Tests start hundreds of processes: each would compile all of forebay again if this were set outside.
unexport PYTHONDONTWRITEBYTECODE

# A strict editable install links files one by one (plain editable mode hides the mapped folders from type checkers),
# so it is renewed whenever a source file appears or goes, as well as when pyproject.toml changes.
LAYOUT := $(shell find $(SOURCES) -name '*.py' | LC_ALL=C sort | cksum | cut -d' ' -f1)
INSTALLED := $(VENV)/.installed-$(LAYOUT)
# The demo needs less than the tests do. Where everything is installed already, it needs nothing more.
FOR_DEMO := $(if $(wildcard $(VENV)/.dependencies),$(INSTALLED),$(VENV)/.demo-$(LAYOUT))

.DEFAULT_GOAL := help
.PHONY: help dev demo test test-fast test-matrix test-s3a test-slow lint format docs bench licences clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# pip shows what it downloads: it takes minutes.
define install
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(PIP) --quiet --upgrade "pip>=25.1" "setuptools>=77"
	@echo "installing forebay[$(1)], mostly Spark (460 MB), into $(VENV)"
	@$(PIP) $(EDITABLE) ".[$(1)]" $(2)
	@touch $@
endef

$(VENV)/.dependencies: pyproject.toml
	$(call install,$(EXTRAS),--group dev)

$(VENV)/.demo-$(LAYOUT): pyproject.toml
	@rm -f $(VENV)/.demo-*
	$(call install,demo)

$(INSTALLED): $(VENV)/.dependencies
	@rm -f $(VENV)/.installed-*
	$(PIP) --quiet --no-deps $(EDITABLE) .
	@touch $@

# A second environment, with the lowest versions that pyproject.toml allows, Spark included, and the tests that use most
# of them. Spark 4.0 has no streams: only the tests of batch reads and writes can run. The extra `metrics` needs a newer
# OpenTelemetry than forebay does: it is left out.
LOWEST := .venv-lowest
LOWEST_INSTALLED := $(LOWEST)/.installed-$(LAYOUT)
LOWEST_PIP := PYTHONWARNINGS=ignore $(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check
LOWEST_TESTS := tests/conformance tests/golden tests/buffer/base tests/buffer/write/test_traced.py tests/buffer/format tests/buffer/store tests/buffer/test_producer.py \
	tests/buffer/test_consumer.py tests/runtime/sinks tests/cli/test_commands.py tests/runtime/spark/test_versions.py \
	tests/runtime/spark/test_discovery.py tests/runtime/spark/reading/test_read_spark.py \
	tests/runtime/spark/writing/test_batch_writer.py tests/testing

$(LOWEST)/.dependencies: pyproject.toml tests/lowest.py
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python tests/lowest.py test,$(LOWEST_EXTRAS) > $(LOWEST)/requirements.txt
	$(LOWEST_PIP) --upgrade "pip>=25.1" "setuptools>=77" --requirement $(LOWEST)/requirements.txt
	touch $@

$(LOWEST_INSTALLED): $(LOWEST)/.dependencies
	rm -f $(LOWEST)/.installed-*
	$(LOWEST_PIP) --no-build-isolation --no-deps --editable . --config-settings editable_mode=strict
	touch $@

dev: $(INSTALLED) ## Make .venv with forebay and everything needed to work on it

demo: $(FOR_DEMO) ## Watch forebay at work, end to end (DEMO="--keep" leaves the buffer to look at)
	$(BIN)/forebay demo $(DEMO)

# The tests of a file stay together: they share servers and sessions of Spark. tests/conftest.py orders the files.
IN_PARALLEL := -n auto --dist loadfile --no-loadscope-reorder --durations 15

test: $(INSTALLED) ## Run the tests (PYTEST="-k register" narrows them)
	$(BIN)/pytest -m "not slow and not matrix" $(IN_PARALLEL) $(PYTEST)

test-fast: $(INSTALLED) ## Run only tests without servers, Spark or other processes: under a minute
	$(BIN)/pytest -m "not slow and not system" $(IN_PARALLEL) $(PYTEST)

# A server for Azure, from npm. Where it cannot be fetched, its tests are skipped and say so.
AZURITE := build/azurite
FOR_AZURE := $(if $(shell which npm 2>/dev/null),$(AZURITE)/.fetched)

$(AZURITE)/.fetched:
	@echo "fetching Azurite (190 MB) into $(AZURITE)"
	@npm install --silent --no-audit --no-fund --prefix $(AZURITE) azurite@3.35.0 && touch $@ || echo "Azurite cannot be fetched"

# What is slow and rarely breaks.
test-matrix: $(INSTALLED) $(LOWEST_INSTALLED) $(FOR_AZURE) ## Run what takes minutes: streams of Spark, a cluster, Azure's emulator, and the lowest versions of dependencies
	$(BIN)/pytest -m "matrix and not slow" $(IN_PARALLEL) tests/runtime/spark tests/conformance tests/gc tests/scenarios tests/test_api_reference.py $(PYTEST)
	$(LOWEST)/bin/python -m pytest -m "not slow and not matrix" $(IN_PARALLEL) $(LOWEST_TESTS) $(PYTEST)

# Hadoop's S3 file system, in the version of the Hadoop that pyspark brings.
S3A := build/s3a
HADOOP = $(shell $(BIN)/python -c "import pathlib, pyspark; jar, = pathlib.Path(pyspark.__file__).parent.glob('jars/hadoop-client-api-*.jar'); print(jar.stem.removeprefix('hadoop-client-api-'))")

$(S3A)/.fetched: tests/runtime/spark/s3a/pom.xml | $(INSTALLED)
	@echo "fetching Hadoop's jars for S3 (660 MB) into $(S3A)"
	mvn --quiet --batch-mode --file $< -Dhadoop.version=$(HADOOP) -Dmaven.repo.local=$(abspath $(S3A))/repository \
		org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies -DoutputDirectory=$(abspath $(S3A))/jars
	@touch $@

test-s3a: $(INSTALLED) $(S3A)/.fetched ## Run the tests of Spark's own reader on S3: needs Maven, and fetches 660 MB once
	FOREBAY_S3A_JARS=$(abspath $(S3A))/jars $(BIN)/pytest tests/runtime/spark/test_s3a.py $(PYTEST)

test-slow: $(INSTALLED) ## Run longer forms of some tests: they take hours
	$(BIN)/pytest -m slow --durations 15 $(PYTEST)

lint: $(INSTALLED) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd tests && ../$(BIN)/mypy --config-file ../pyproject.toml  # from the top folder, mypy would find forebay/ alone

format: $(INSTALLED) ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: $(INSTALLED) ## Write the API reference to build/reference, and check its links
	$(BIN)/python docs/reference.py build/reference

bench: $(INSTALLED) ## Measure, as ratios to ceilings taken in the same run
	$(BIN)/python benchmarks

licences: $(INSTALLED) ## List the licences of forebay and of all packages that it and its extras need
	@$(BIN)/python .ci/licences.py $(EXTRAS)

clean: ## Remove what the other targets made
	rm -rf $(VENV) $(LOWEST) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

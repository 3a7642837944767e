# make conformance            run the suite on the bundled engine
# make conformance ARGS="--endpoint http://127.0.0.1:8000"
# make test                   the project's own tests
# make check                  types, lint, tests with coverage
# make lock                   refresh requirements-dev.txt
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: conformance test check lint lock bench clean

$(VENV)/ready: pyproject.toml requirements-dev.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

conformance: $(VENV)/ready
	$(BIN)/python -m pytest conformance/ $(ARGS)

test: $(VENV)/ready
	$(BIN)/python -m pytest tests/ -n 2 $(ARGS)

check: lint
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest tests/ $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --fail-under=95

lint: $(VENV)/ready
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

bench: $(VENV)/ready
	$(BIN)/python -m bench $(ARGS)

lock:
	uv pip compile --quiet --universal --python-version 3.11 --extra dev --no-emit-index-url --output-file requirements-dev.txt pyproject.toml

clean:
	rm -rf $(VENV) .conformance

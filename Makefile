# Two commands for a newcomer: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint install clean

.venv/.user: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/.dev: .venv/.user
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

install: .venv/.user

demo: .venv/.user
	$(BIN)/bench run --method dpsd --attack gmi

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/bench leaderboard --check
	$(BIN)/python docs/tables.py --check
	PYTHONHASHSEED=0 OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile -m "not slow"

clean:
	rm -rf .venv build *.egg-info

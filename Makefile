# Two commands for a newcomer: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# Images of containers often set it; without compiled modules each of the tests' hundred processes compiles them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test checks fast thorough device docs test-all lowest lint install clean

.venv/.user: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/.dev: .venv/.user
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

install: .venv/.user

# `bench run --method dpsd --attack gmi` with less of everything: a smaller teacher and judge, one student, a shorter attack.
demo: .venv/.user
	$(BIN)/bench run --method dpsd --attack pca-mi --dataset letters --split identity --teacher resnet10t \
		--method.committee 1 --method.student_steps 400

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

PYTEST := PYTHONHASHSEED=0 OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --durations=20

# Side by side: what reads one file after the other leaves a core to the tests.
test: .venv/.dev
	$(MAKE) -j2 checks fast

checks: lint
	$(BIN)/bench leaderboard --check
	$(BIN)/python -m docs.tables --check

fast: .venv/.dev
	$(PYTEST) -m "not slow and not thorough" --ignore=tests/device

# Seconds each: every step beside its neighbour, every pair, statistics, kills. CI runs them.
thorough: .venv/.dev
	$(PYTEST) -m "thorough and not slow" --ignore=tests/device

# Every method and attack on a device that is no CPU, made of CPU tensors; alone, as torch knows of it from then on.
device: .venv/.dev
	$(PYTEST) tests/device

# One static site in build/site: the documentation, and the report of the published boards in boards/. A warning is an error.
docs: .venv/.docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going -q -b html -d build/doctrees docs build/site
	$(BIN)/bench report --boards leaderboards --out build/site/boards

.venv/.docs: .venv/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

# All tests, the slow ones too: whole trainings, many seeds of statistical tests, real data.
test-all: lint device
	$(PYTEST) --ignore=tests/device

# The fast tests with the lowest versions that pyproject.toml allows.
lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check --constraint tests/lowest.txt --editable '.[dev]'
	PYTHONHASHSEED=0 OMP_NUM_THREADS=1 .venv-lowest/bin/pytest -n auto --dist loadfile -m "not slow and not thorough" --ignore=tests/device

clean:
	rm -rf .venv .venv-lowest build *.egg-info

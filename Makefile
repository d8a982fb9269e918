# make serve   install, fetch the weights once, and serve CONFIG on HOST:PORT
# make test    install, fetch the tiny pair's weights (93 MB) and run the tests; the page's want a Chromium or Chrome
# make check   lint, formatting, types and the import rule
# make bench-smoke   a small speed run of CONFIG with tables and plots in bench-results/: some minutes on two cores
#
# pip takes torch's default build for the platform; on Linux that carries CUDA. For its much smaller CPU build,
# name PyTorch's CPU package index in pip's own PIP_INDEX_URL or PIP_EXTRA_INDEX_URL.

CONFIG ?= configs/demo.yaml
HOST   ?=
PORT   ?=
PYTHON ?= python3

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV   := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench
PIP   := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check

.PHONY: install serve test check bench-smoke clean
.DEFAULT_GOAL := install

install: $(STAMP)

# Stamps are written last, so an interrupted installation is taken up again.
$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "slipstream needs Python 3.11 or newer; $(PYTHON) was not found (set PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("slipstream needs Python 3.11 or newer; $(PYTHON) is %d.%d (set PYTHON=...)" % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) lacks the venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV); the first time takes some minutes"
	@$(PIP) -e .
	@test -x $(BIN)/slipstream
	@touch $@

# What tests and checks need beside it.
$(DEV): $(STAMP)
	@$(PIP) -e '.[dev,bench]'
	@touch $@

# What plots need beside it.
$(BENCH): $(STAMP)
	@$(PIP) -e '.[bench]'
	@touch $@

serve: install
	@exec $(BIN)/slipstream serve --config $(CONFIG) $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT))

test: $(DEV)
	$(BIN)/slipstream fetch --config configs/tiny.yaml
	$(BIN)/python -m pytest

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-smoke: $(BENCH)
	$(BIN)/slipstream fetch --config $(CONFIG)
	$(BIN)/slipstream bench smoke --config $(CONFIG)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

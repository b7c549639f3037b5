# The project's commands. Everything is installed into .venv: what the programs need from requirements.lock,
# the tools for work on them from requirements-dev.lock. Test components are built once into a cache folder
# outside the tree.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The lock files are complete, so nothing is left to resolve.
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps
PIP_COMPILE := $(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --no-emit-index-url \
	--no-emit-trusted-host --no-emit-find-links
# Most node tests wait for something, so there is room for one more of them than this has cores.
UNIT_WORKERS ?= 2
NODE_WORKERS ?= 3
CLUSTER_WORKERS ?= 2
PACKAGES := cdi controller driver kube kubeletplugin nvmlsim
STUBS := kubeletplugin/api

# A plugin that compiles what it imports at each start takes half as long again and 8 MiB more.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint test-unit test-node test-e2e bench proto stubs-current components cluster lock clean

help: ## show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

venv: $(VENV)/.tools ## the virtual environment with all locked dependencies

$(VENV)/.programs: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --no-compile -r requirements.lock
	PIP_CONSTRAINT=requirements-dev.lock $(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.tools: $(VENV)/.programs requirements-dev.lock
	$(PIP_INSTALL) --no-compile -r requirements-dev.lock
	@touch $@

demo: $(VENV)/.programs ## a simulated eight-GPU node: inventory, two claims, what a container sees, a MIG device made and gone
	$(BIN)/python -m examples.demo

test: lint test-unit test-node test-e2e ## everything

lint: venv stubs-current ## ruff, mypy, the import rules, stubs current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(PACKAGES) examples tests
	$(BIN)/lint-imports

test-unit: venv ## pure logic, milliseconds each
	$(BIN)/pytest -n $(UNIT_WORKERS) tests/unit

components: venv ## etcd, Kubernetes and containerd for the tests, built once (needs Go)
	$(BIN)/python -m tests.cluster.components

test-node: venv components ## the real plugin process, a real API server, simulated GPUs
	$(BIN)/pytest -n $(NODE_WORKERS) --dist loadfile --no-loadscope-reorder tests/node

test-e2e: venv components ## real kubelet, scheduler and containerd (needs root)
	$(BIN)/pytest -n $(CLUSTER_WORKERS) --dist loadfile tests/e2e

bench: venv components ## speed and memory; writes build/bench.json
	$(BIN)/python -m tests.bench

cluster: venv components ## a one-node cluster with the plugin and example pods, to play with (needs root)
	$(BIN)/python -m tests.cluster up

proto: venv ## regenerate the gRPC stubs from proto/
	$(BIN)/python -m tests.stubs write

stubs-current: venv ## whether the stubs are what proto/ makes
	$(BIN)/python -m tests.stubs check

lock: venv ## renew the lock files from pyproject.toml
	$(PIP_COMPILE) --extra controller --output-file requirements.lock pyproject.toml
	$(PIP_COMPILE) --extra controller --extra dev --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml

clean: ## remove what was built here
	rm -rf $(VENV) build dist

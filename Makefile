# The project's commands. Everything is installed into .venv from requirements.lock; test components are
# built once into a cache folder outside the tree.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Most node tests wait for something, so there is room for one more of them than this has cores.
UNIT_WORKERS ?= 2
NODE_WORKERS ?= 3
CLUSTER_WORKERS ?= 2
PACKAGES := cdi driver kube kubeletplugin nvmlsim
STUBS := kubeletplugin/api

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint test-unit test-node test-e2e bench proto stubs-current components cluster lock clean

help: ## show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

venv: $(VENV)/.installed ## the virtual environment with all locked dependencies

$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: venv ## a simulated eight-GPU node: inventory, two claims, what a container sees, a MIG device made and gone
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
	$(BIN)/pytest -n $(NODE_WORKERS) --dist loadfile tests/node

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

lock: venv ## renew requirements.lock from pyproject.toml
	$(BIN)/pip-compile --quiet --extra dev --strip-extras --allow-unsafe --no-emit-index-url \
		--no-emit-trusted-host --no-emit-find-links --output-file requirements.lock pyproject.toml

clean: ## remove what was built here
	rm -rf $(VENV) build dist

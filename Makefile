# Everything sets itself up: missing Debian packages are installed (with sudo
# unless root), kernels are fetched into the user's cache once.

export CGO_ENABLED ?= 0

GO      ?= go
LAB      = build/lab
SUDO     = $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# Debian packages, by what needs them: the lab; the generator and the tests
# against C.
LAB_DEBS  = qemu-system-x86 kmod
TEST_DEBS = $(LAB_DEBS) clang gcc libc6-dev libibverbs-dev librdmacm-dev curl wget iproute2 rdmacm-utils ibverbs-utils ibverbs-providers

# Packages with tests that want a real kernel, and the kernels.
LAB_PKGS = ./abi ./uverbs ./cm ./conn ./msg ./rsock ./cmd/... ./tests/...
KERNELS  = 6.1 6.12 7.2

.DEFAULT_GOAL := help

help: ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: deps-lab build ## write, read back and compare over RDMA, on a real kernel
	$(LAB) build/verbs demo

test: deps-test build ## run every test, those that need a kernel in the lab
	$(GO) run ./gen -check -out abi
	$(LAB) fetch
	$(GO) test ./...
	$(GO) test -p 1 -count 1 -timeout 15m -exec "$(CURDIR)/$(LAB)" $(LAB_PKGS)

test-kernels: deps-test build ## run the tests that need a kernel on every kernel
	@failed=; for k in $(KERNELS); do \
		echo "== kernel $$k"; \
		export LAB_KERNEL=$$k; \
		$(LAB) fetch && \
		LAB_TEST_KERNELS=1 $(GO) test -count 1 -run "Kernels/^$$k\$$" ./tests/lab && \
		$(GO) test $(FLAGS) -p 1 -count 1 -timeout 15m -exec "$(CURDIR)/$(LAB)" $$($(GO) list $(LAB_PKGS) | grep -v /tests/lab) || \
		failed="$$failed $$k"; \
	done; test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }

tables: deps-test build ## run the scenarios on every kernel and write their tables
	@rm -rf build/tables && mkdir -p build/tables
	@for k in $(KERNELS); do \
		echo "== kernel $$k"; \
		export LAB_KERNEL=$$k LAB_WRITE="$(CURDIR)/build/tables" SCENARIO_TABLE="$(CURDIR)/build/tables/scenarios" FEATURE_TABLE="$(CURDIR)/build/tables/features"; \
		$(LAB) fetch && $(GO) test -count 1 -exec "$(CURDIR)/$(LAB)" ./tests/scenarios || exit 1; \
	done
	$(GO) run ./tests/docs/scenariotable build/tables/scenarios docs/scenarios.md build/tables/features README.md

race: deps-test build ## run the lab's tests under the race detector
	CGO_ENABLED=1 $(GO) test -race -p 1 -count 1 -timeout 15m -exec "$(CURDIR)/$(LAB)" ./uverbs ./cm ./msg

lint: ## gofmt, vet, staticcheck, and a build for arm64
	@test -z "$$(gofmt -l .)" || { gofmt -l . ; echo "run gofmt -w on these"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	GOARCH=arm64 $(GO) build ./...

generate: deps-test ## regenerate package abi
	$(GO) generate ./abi

bench: deps-test build ## run the benchmarks in the lab, beside C where C does the same
	$(LAB) fetch
	$(GO) test -run '^$$' -bench . -count 1 -exec "$(CURDIR)/$(LAB)" ./uverbs
	$(GO) test -v -count 1 -exec "$(CURDIR)/$(LAB)" ./tests/bench -reps 9

build: ## build the programs into build/
	@mkdir -p build
	$(GO) build -o build/ ./tests/lab ./tests/bench/... ./cmd/verbs ./examples/...

clean: ## remove what was built
	rm -rf build

# The packages are looked up first, so that nothing is done, and no password
# asked, when they are there.
define need
@dpkg -s $(1) >/dev/null 2>&1 || { $(SUDO) apt-get update && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y --no-install-recommends $(1); }
endef

deps-lab:
	$(call need,$(LAB_DEBS))

deps-test:
	$(call need,$(TEST_DEBS))

.PHONY: help demo test test-kernels tables race lint generate bench build clean deps-lab deps-test

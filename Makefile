# Everything sets itself up: missing Debian packages are installed (with sudo
# unless root), kernels are fetched into the user's cache once.

export CGO_ENABLED ?= 0

GO      ?= go
LAB      = build/lab
SUDO     = $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# Debian packages, by what needs them: the lab; the generator and the tests
# against C; those on User-mode Linux.
LAB_DEBS  = qemu-system-x86 kmod iproute2 xz-utils zstd faketime
TEST_DEBS = $(LAB_DEBS) clang gcc libc6-dev libibverbs-dev librdmacm-dev curl wget rdmacm-utils ibverbs-utils ibverbs-providers perftest crun iperf3

NATIVE_DEBS = gcc libc6-dev libibverbs-dev librdmacm-dev ibverbs-providers

# Packages with tests that want a real kernel, and the kernels. What lies deeper in tests than
# these is programs and their own tests. tests/driver is a module of its own, tests/hosts
# needs two machines, and tests/nic an adapter.
LAB_PKGS = ./cmd/verbs/internal/abicheck ./uverbs ./cm ./rconn ./rmsg ./rsock ./rdmatest ./examples/s3 ./examples/valkey/valkeyrdma ./cmd/verbs $(addprefix ./cmd/verbs/internal/,abi cli info perf) $(filter-out ./tests/driver/ ./tests/hosts/ ./tests/nic/ ./tests/suites/ ./tests/workload/,$(wildcard ./tests/*/)) ./tests/faults/harness
KERNELS  = 6.1 6.12 7.3
KERNEL   = 6.12
FLAGS    = -short

# Those that make race runs.
RACE_PKGS = ./uverbs ./cm ./rconn ./rmsg ./rsock ./tests/model

.DEFAULT_GOAL := help

help: ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: deps-lab build ## write, read back and compare over RDMA, on a real kernel
	$(LAB) build/verbs demo

# Each part sets itself up, so that a workflow can run the parts side by side.
test: test-host test-race test-lab test-hosts test-nic bench-quick ## run the tests that a change needs, in a quarter of an hour

test-all: ## run every test: all kernels, long rounds, faults, two machines, races, arm64, the newest C peers
	LAB_TEST_BOOT=1 $(MAKE) test-host FLAGS=
	$(MAKE) test-kernels FLAGS=
	$(MAKE) hosts adapter nic faults race test-arm64 test-peers upstream suites bench-quick
	$(MAKE) soak DURATION=5m
	$(MAKE) lint test-builds fuzz ALL=1

test-host: deps-test build build/promtool ## run the tests that need no kernel, on a device in user space
	$(GO) run ./gen -check -out abi
	$(GO) run ./gen/ifc -check -out lab/connectx/internal/ifc
	$(GO) test work

test-race: ## run the tests of drivers, and random calls of the verbs, under the race detector
	CGO_ENABLED=1 $(GO) test -race ./provider/... ./tests/model

# One machine runs the packages one after the other. With -short it leaves out what a device
# in user space has shown.
test-lab: deps-test build ## run the tests that need a kernel on KERNEL (6.12); with FLAGS= all of them, and long rounds
	$(LAB) --kernel $(KERNEL) fetch
	$(LAB) --kernel $(KERNEL) test -timeout 20m $(FLAGS) $(LAB_PKGS)
	cd tests/driver && GOWORK=off $(GO) test -count 1 -timeout 5m -exec "$(CURDIR)/$(LAB) --kernel $(KERNEL)" .

test-hosts: deps-test build ## run the short tests of two machines on a wire
	$(LAB) fetch
	LAB_PEER=6.12 $(GO) test -short -count 1 -timeout 15m -exec "$(CURDIR)/$(LAB)" ./tests/hosts

# Debian 12 has rdma-core 44.
NICS          = connectx connectx-ib
NIC_USERLANDS = bookworm-security sid

test-nic: deps-test build build/c/libmlx5 ## run C programs and rdma-core's tests on an emulated ConnectX, the shortest pass of each
	$(LAB) --userland $(firstword $(NIC_USERLANDS)) fetch
	$(LAB) --nic $(firstword $(NICS)) --userland $(firstword $(NIC_USERLANDS)) test -short -timeout 10m ./cmd/verbs/internal/abicheck ./tests/nic ./provider/mlx5
	$(LAB) --nic connectx,connectx-ib --userland $(firstword $(NIC_USERLANDS)) test -short -timeout 10m -run TestAdapter ./tests/rdmadev

# Runs go test with $(2) on KERNELS and NICS, and with each of $(1), which are options of the lab. $(3) are the packages, $(4)
# those on InfiniBand. The table of their results is build/$@.md.
define nic-table
@rm -rf build/$@ && mkdir -p build/$@
@failed=; for k in $(KERNELS); do for u in $(1); do for n in $(NICS); do \
	run="--kernel $$k $$u --nic $$n"; echo "== $$run"; case $$n in *-ib) pkgs="$(4)";; *) pkgs="$(3)";; esac; $(LAB) --kernel $$k $$u fetch && \
	$(LAB) $$run test -json $(2) $$pkgs >build/$@/$$k$$u-$$n.json || failed="$$failed$$run\n"; \
done; done; done; $(GO) run ./tests/nic/nicdoc build/$@/*.json >build/$@.md; cat build/$@.md; test -z "$$failed" || { printf "failed:\n$$failed"; exit 1; }
endef

nic: deps-test build ## run them on KERNELS, with releases of libmlx5 and link layers, and write build/nic.md; FLAGS= for all
	$(call nic-table,$(NIC_USERLANDS:%=--userland=%),$(FLAGS) -timeout $(if $(findstring -short,$(FLAGS)),10m,2h),./tests/nic,./tests/nic)

# Packages whose tests run on an adapter, and those that need no address, as on InfiniBand. In place of each device of
# the lab, tests have the adapter.
ADAPTER_PKGS = ./provider/mlx5 $(filter-out ./tests/bench/ ./tests/soak/,$(LAB_PKGS))
IB_PKGS      = ./cmd/verbs/internal/abicheck ./provider/mlx5 ./uverbs ./cmd/verbs/internal/info ./tests/model ./tests/rdmadev ./tests/scenarios

adapter-table: export LABTEST_DEVICE = mlx5_0
adapter-table: deps-test build build/c/libmlx5 ## run the tests of all packages on an emulated ConnectX, on KERNELS and both link layers, and write build/adapter-table.md; FLAGS= for long rounds
	$(call nic-table,"",$(FLAGS) -timeout 20m,$(ADAPTER_PKGS),$(IB_PKGS))

# The last two compare with the newest release of libmlx5, and on InfiniBand.
adapter: deps-test build build/c/libmlx5 ## run the tests of the driver for ConnectX, and of its faults, on KERNELS with an emulated one
	@failed=; for k in $(KERNELS); do \
		run="--kernel $$k --nic connectx"; echo "== $$run"; $(LAB) --kernel $$k fetch && $(LAB) $$run test -timeout 20m ./cmd/verbs/internal/abicheck ./provider/mlx5 && \
		LABTEST_DEVICE=mlx5_0 $(LAB) $$run test -timeout 20m -run 'TestPingPong$$|TestAdapterRemoval' ./tests/interop ./tests/faults/harness && \
		$(LAB) --kernel $$k --nic connectx,connectx-ib test -timeout 20m -run TestAdapter ./tests/rdmadev || failed="$$failed $$k"; \
	done; test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }
	$(LAB) --userland sid fetch
	$(LAB) --nic connectx --userland sid test -v -timeout 20m -run AgainstC ./provider/mlx5
	$(LAB) --nic connectx-ib test -v -timeout 20m -run AgainstC ./provider/mlx5
	$(LAB) --nic connectx-noguid,connectx-noguid test -run TestNoNodeGUID ./cm

test-kernels: bench-c native-go ## run test-lab on every kernel
	@failed=; for k in $(KERNELS); do \
		echo "== kernel $$k"; $(MAKE) test-lab KERNEL=$$k || failed="$$failed $$k"; \
	done; test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }

# The emulated machine has Debian 12's programs of its architecture.
ARCH_PKGS = ./abi ./mmap $(filter-out ./tests/bench/ ./tests/soak/,$(LAB_PKGS))

test-arm64: deps-test build ## run the tests that need a kernel on an emulated arm64 machine, and those of the driver for ConnectX with pages of 4 and 16 KiB
	$(call need,qemu-system-arm)
	$(call need,qemu-user)
	for size in 4096 16384; do GOARCH=arm64 $(GO) test $(FLAGS) -count 1 -skip AgainstC -exec "qemu-aarch64 -p $$size" ./provider/mlx5 || exit 1; done
	GOARCH=arm64 $(GO) build -o build/lab-arm64 ./lab/rdmalab
	GOARCH=arm64 $(GO) build -o build/arm64/ ./tests/bench/... ./cmd/verbs ./examples/... ./exporter/cmd/...
	LAB_ARCH=arm64 $(LAB) fetch
	LAB_ARCH=arm64 GOARCH=arm64 $(GO) test $(FLAGS) -p 1 -count 1 -timeout 40m -skip BarrierInstructions -exec "$(CURDIR)/$(LAB)" $(ARCH_PKGS)

test-peers: deps-test build ## run the tests against C with the newest release of rdma-core, of Debian sid
	$(LAB) --userland sid fetch
	SOFT_PEERS=all LAB_USERLAND=sid $(GO) test $(FLAGS) -count 1 -timeout 30m -exec "$(CURDIR)/$(LAB)" ./tests/interop

# Modules are fetched, and the toolchain is copied and changed, below build/suites.
suites: ## run the test suites of net/http, crypto/tls and other projects over package rsock, beside TCP
	$(GO) test -v -count 1 -timeout 60m $(if $(RUN),-run '$(RUN)') ./tests/suites -suites

valkey: deps-test build ## load a valkey-server over RDMA, beside TCP and then for 10 minutes, with valkey-go and go-redis
	cd examples/valkey && $(GO) run ./mkserver "$(CURDIR)/build/valkey-server"
	$(LAB) --accel dilated --timeout 30m sh examples/valkey/load.sh compare 1s
	$(LAB) --timeout 30m sh examples/valkey/load.sh last 10m

DURATION = 60m
DEVICE   = rxe0 siw0 soft
SEED     = 0

# What Go parses as a duration may name a unit twice.
soak: deps-lab build ## keep all layers busy for DURATION (60m) on each DEVICE (rxe0 siw0; soft with a bad network)
	$(LAB) fetch
	@failed=; for d in $(DEVICE); do \
		echo "== $$d for $(DURATION)"; \
		LAB_TIMEOUT=$(DURATION)20m $(GO) test -v -count 1 -timeout $(DURATION)15m -exec "$(CURDIR)/$(LAB)" ./tests/soak \
			-run "TestSoak/^$$d\$$" -duration $(DURATION) -seed $(SEED) || failed="$$failed $$d"; \
	done; test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }

race: deps-test build ## vet all code for the race detector, and run the tests of drivers and some of the lab's under it
	CGO_ENABLED=1 $(GO) vet -race work
	CGO_ENABLED=1 $(GO) test -race -count 1 ./provider/...
	CGO_ENABLED=1 $(GO) test -race -p 1 -count 1 -timeout 15m -exec "$(CURDIR)/$(LAB)" $(RACE_PKGS)

upstream: deps-test build ## run the programs of docs/upstream, which show defects of the kernel: some crash the lab's machine
	for k in $(KERNELS); do $(LAB) --kernel $$k fetch || exit 1; done
	$(GO) test -v -count 1 -timeout 30m ./docs/upstream -lab "$(CURDIR)/$(LAB)"

# What programs import.
LIB_PKGS = . ./abi ./cm ./mmap ./rconn ./rdmadev ./rdmatest ./rmsg ./provider/... ./rsock ./soft ./uverbs ./verbstest

# Packages that use unsafe, and those whose tests exercise it. Their tests run with the
# compiler's checks of pointers.
UNSAFE_PKGS = ./abi ./mmap ./provider/... ./internal/engine ./internal/host ./internal/sys ./internal/udp ./soft/... ./uverbs ./cm ./rsock

# With ALL=1, as at night, all that docs/kernels.md names.
PLATFORMS = linux/arm64 linux/arm linux/s390x darwin/arm64 freebsd/amd64 windows/amd64 $(if $(ALL),linux/ppc64 linux/riscv64 netbsd/amd64 openbsd/amd64)

lint: vet-platforms ## gofmt, modules, vet, staticcheck, other platforms, known vulnerabilities
	@test -z "$$(gofmt -l .)" || { gofmt -l . ; echo "run gofmt -w on these"; exit 1; }
	@mkdir -p build
	GO=$(GO) .github/modules.sh -diff
	cd tests/driver && GOWORK=off $(GO) mod tidy -diff
	$(GO) vet work
	$(GO) tool staticcheck work
	@if curl -sSfm 10 -o /dev/null https://vuln.go.dev/index/db.json; then \
		$(GO) run golang.org/x/vuln/cmd/govulncheck@latest work; s=$$?; test $$s -ne 3 || exit $$s; \
	else echo "govulncheck skipped: its database cannot be reached"; fi

tidy: ## go mod tidy, of all modules
	GO=$(GO) .github/modules.sh -tidy
	cd tests/driver && GOWORK=off $(GO) mod tidy

test-builds: ## run the tests that need no kernel with checks of pointers, without the kernel's devices, and on 386
	@mkdir -p build
	@echo "$(GO) test -d=checkptr"; $(GO) test -gcflags=github.com/goverbs/verbs/...=-d=checkptr -skip AgainstC $(UNSAFE_PKGS) >build/checkptr.txt 2>&1 || { cat build/checkptr.txt; exit 1; }
	$(GO) test -tags nordma ./internal/host ./internal/udp ./soft/...
	@GOARCH=386 $(GO) test -c -o build/386.test .; exec=; \
	build/386.test -test.run '^$$' >build/386.txt 2>&1 || { grep -q "ormat error" build/386.txt && exec="-exec true" && echo "this kernel runs no 386 programs: they are only built"; }; \
	echo "GOARCH=386 $(GO) test $$exec"; GOARCH=386 $(GO) test $$exec -skip AgainstC $(LIB_PKGS) >build/386.txt 2>&1 || { cat build/386.txt; exit 1; }

# The root package is for programs on every system.
vet-platforms: ## vet the packages that programs import, and the command, for PLATFORMS
	@for p in $(PLATFORMS); do echo "go vet for $$p"; GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) vet $(LIB_PKGS) ./cmd/verbs $(if $(ALL),./exporter/...) || exit 1; done
	GOOS=plan9 GOARCH=amd64 $(GO) build .

cover: ## measure what the tests on a device in user space cover, into build/cover.out
	@mkdir -p build
	$(GO) test -short -coverprofile build/cover.out -coverpkg ./... ./...
	$(GO) tool cover -func build/cover.out >build/cover.txt && tail -n 1 build/cover.txt

BASE    = origin/main
APIDIFF = $(GO) run golang.org/x/exp/cmd/apidiff@v0.0.0-20261113113407-e3970619a1a4 -m

api-diff: ## list how the API differs from that of the commit BASE (origin/main), into build/api.txt
	@mkdir -p build && rm -rf build/base && git worktree prune
	git worktree add -q --detach build/base $(BASE)
	cd build/base && GOWORK=off $(APIDIFF) -w ../base.api github.com/goverbs/verbs
	git worktree remove --force build/base
	GOWORK=off $(APIDIFF) build/base.api github.com/goverbs/verbs >build/api.txt
	@cat build/api.txt

FUZZTIME = 10s

# New inputs are minimized a little only: by default that takes up to a minute
# each, in which nothing else is tried. Before Go 1.27 a fuzz test may fail for
# nothing but the end of its time (golang/go#75804).
fuzz: ## run every fuzz test for FUZZTIME (10s), one after the other
	@mkdir -p build
	@$(GO) test -list '^Fuzz' work | awk '/^Fuzz/ { tests = tests " " $$1 } /^ok/ { n = split(tests, t, " "); for (i = 1; i <= n; i++) print $$2, t[i]; tests = "" }' >build/fuzz.txt
	@test -s build/fuzz.txt
	@while read -r pkg fuzz; do \
		echo "== $$pkg $$fuzz"; \
		$(GO) test -run '^$$' -fuzz "^$$fuzz\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg >build/fuzz-log.txt 2>&1 </dev/null || \
		{ grep -q '^    context deadline exceeded$$' build/fuzz-log.txt && ! grep -q 'Failing input' build/fuzz-log.txt; } || \
		{ cat build/fuzz-log.txt; exit 1; }; \
		grep execs build/fuzz-log.txt | tail -n 1; \
	done <build/fuzz.txt

faults: deps-test build ## cause faults under load, all or RUN=TestKill/rxe0/rmsg
	$(LAB) fetch
	FAULTS=all LAB_TIMEOUT=60m $(GO) test -v -count 1 -timeout 60m $(if $(RUN),-run '$(RUN)') -exec "$(CURDIR)/$(LAB)" ./tests/faults/harness

hosts: deps-test build ## put two machines on a wire and cause faults there, all or RUN=TestNetem/rxe
	@for pair in 6.1/7.3 6.12/6.1; do \
		echo "== kernels $$pair"; \
		LAB_KERNEL=$${pair%/*} LAB_PEER=$${pair#*/} LAB_TIMEOUT=60m \
		$(GO) test -v -count 1 -timeout 60m $(if $(RUN),-run '$(RUN)') -exec "$(CURDIR)/$(LAB)" ./tests/hosts || exit 1; \
	done
	LAB_NIC=connectx LAB_PEER=6.12 LAB_TIMEOUT=60m \
	$(GO) test -v -count 1 -timeout 60m -run '$(if $(RUN),$(RUN),TestConnectX|TestCheck|TestPingMesh)' -exec "$(CURDIR)/$(LAB)" ./tests/hosts

generate: deps-test ## regenerate package abi, and the layouts of the emulated adapter
	$(GO) generate ./abi ./lab/connectx/internal/ifc

# What fails is "not measured" on the page.
bench: deps-test build bench-c ## measure in the lab with dilated time, beside C, and write docs/benchmarks.md
	@rm -rf build/bench && mkdir -p build/bench
	$(LAB) fetch
	@export LAB_ACCEL=dilated LAB_MEM=4096 LAB_TIMEOUT=60m LAB_WRITE="$(CURDIR)/build/bench" BENCH_RECORDS="$(CURDIR)/build/bench"; \
	$(GO) test -v -count 1 -timeout 60m -exec "$(CURDIR)/$(LAB)" ./tests/bench -reps 20 -lasting 40ms; s=$$?; \
	$(GO) run ./tests/bench/benchdoc lab build/bench && exit $$s

bench-native: deps-native build bench-c native-go ## measure posting and polling at full speed, beside libibverbs and cgo, and write docs/benchmarks.md
	@rm -rf build/bench-native && mkdir -p build/bench-native
	CGO_ENABLED=1 $(GO) build -tags bench_cgo -o build/native-cgo ./tests/bench/native
	LAB_KERNEL=uml $(LAB) fetch
	@export LAB_KERNEL=uml LAB_TIMEOUT=60m LAB_WRITE="$(CURDIR)/build/bench-native" BENCH_RECORDS="$(CURDIR)/build/bench-native"; \
	$(GO) test -v -count 1 -timeout 60m -run TestNative -exec "$(CURDIR)/$(LAB)" ./tests/bench -native -reps 30; s=$$?; \
	$(GO) run ./tests/bench/benchdoc native build/bench-native && exit $$s

bench-mlx5: deps-native build build/c/mlx5 ## measure posting and polling on mlx5 without an adapter, beside libmlx5, and write docs/benchmarks.md
	@rm -rf build/bench-mlx5 && mkdir -p build/bench-mlx5
	@export BENCH_RECORDS="$(CURDIR)/build/bench-mlx5"; \
	$(GO) test -v -count 1 -timeout 10m -run TestMLX5 ./tests/bench -native -reps 60; s=$$?; \
	$(GO) run ./tests/bench/benchdoc adapter build/bench-mlx5 && exit $$s

bench-quick: deps-lab build native-go ## count the instructions of posting and polling, and fail if there are 5 % more than recorded
	@rm -rf build/bench-quick && mkdir -p build/bench-quick
	$(LAB) fetch
	@LAB_ACCEL=icount LAB_WRITE="$(CURDIR)/build/bench-quick" BENCH_RECORDS="$(CURDIR)/build/bench-quick" \
	$(GO) test -count 1 -run 'TestNative|TestMLX5' -exec "$(CURDIR)/$(LAB)" ./tests/bench -counted
	$(GO) run ./tests/bench/benchdoc check counted build/bench-quick

# The program that rings no doorbell.
native-go:
	$(GO) vet $(MUTE) ./provider ./tests/bench/native
	$(GO) build $(MUTE) -o build/native-go ./tests/bench/native

MUTE = -overlay tests/bench/native/testdata/overlay.json

# The C programs that stand beside those of tests/bench. The emulated machine would take long
# to compile them.
bench-c: $(patsubst tests/bench/c/%.c,build/c/%,$(wildcard tests/bench/c/*.c))

build/c/%: tests/bench/c/%.c $(wildcard tests/bench/c/*.h)
	@mkdir -p build/c
	gcc -O2 -Wall -Werror -o $@ $< -lrdmacm -libverbs

build/c/libmlx5: provider/mlx5/testdata/libmlx5.c
	@mkdir -p build/c
	gcc -O2 -Wall -Werror -o $@ $< -lmlx5 -libverbs

# Debian's package would also start a server.
build/promtool:
	@mkdir -p build/prometheus
	cd build/prometheus && { apt-get download prometheus || { $(SUDO) apt-get update && apt-get download prometheus; } } && dpkg-deb -x prometheus_*.deb .
	mv build/prometheus/usr/bin/promtool $@ && rm -r build/prometheus

build: ## build the programs into build/
	@mkdir -p build
	$(GO) build -o $(LAB) ./lab/rdmalab
	$(GO) build -o build/ ./tests/bench/... ./cmd/verbs ./examples/... ./exporter/cmd/...

# Programs without C, and for RDMA in the kernel the lab and the exporter too. SBOM lists the modules that a binary has.
RELEASE   = linux/amd64 linux/arm64 darwin/arm64 windows/amd64
SBOM      = $(GO) run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0 bin -json -noserial -notimestamp -std -version v$(shell sed -n 's/^const Version = "\(.*\)"$$/\1/p' version.go)
RELEASEGO = GOWORK=off CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags='-s -w' -o $(CURDIR)/build/release/

release: ## build the programs of a release, with their parts and checksums, into build/release
	rm -rf build/release && mkdir -p build/release
	GO=$(GO) .github/modules.sh
	@set -e; for p in $(RELEASE); do \
		export GOOS=$${p%/*} GOARCH=$${p#*/}; name=$$GOOS-$$GOARCH$$(test $$GOOS != windows || echo .exe); echo "$$p"; \
		(cd cmd/verbs && $(RELEASEGO)verbs-$$name -modfile $(CURDIR)/build/mod/cmd-verbs.mod .); test $$GOOS = linux || continue; \
		(cd lab && $(RELEASEGO)rdmalab-$$name -modfile $(CURDIR)/build/mod/lab.mod ./rdmalab); \
		(cd exporter && $(RELEASEGO)verbs-exporter-$$name -modfile $(CURDIR)/build/mod/exporter.mod ./cmd/verbs-exporter); \
	done
	@$(if $(SBOM),for f in build/release/*-linux-*; do $(SBOM) -output $$f.cdx.json $$f || exit 1; done)
	cd build/release && sha256sum * >SHA256SUMS

release-check: release ## try a release: build it twice, check it, install and import the module from a proxy in a folder
	GO=$(GO) .github/release-check.sh

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

deps-native:
	$(call need,$(NATIVE_DEBS))

.PHONY: help demo test test-all test-host test-race test-builds test-lab test-hosts test-nic nic adapter test-kernels test-arm64 test-peers suites valkey soak race lint tidy vet-platforms cover api-diff upstream fuzz hosts faults adapter-table generate bench bench-native bench-mlx5 bench-quick native-go bench-c build release release-check clean deps-lab deps-test deps-native

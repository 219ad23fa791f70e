# Each target sets itself up, so that a workflow can run them side by side: it installs missing Debian packages (with
# sudo unless root), and fetches kernels once into the user's cache.

export CGO_ENABLED ?= 0
export GO ?= go
SUDO = $(shell [ "$$(id -u)" = 0 ] || echo sudo)
LAB  = build/lab
EXEC = -count 1 -exec "$(CURDIR)/$(LAB)"
LONG = LAB_TIMEOUT=60m $(GO) test -v -timeout 60m $(EXEC)
ONLY = $(if $(RUN),-run '$(RUN)')

# What to run: make soak DEVICE=rxe0. ALL=1 adds to the platforms what docs/kernels.md names, as at night.
KERNELS   = 6.1 6.12 7.3
KERNEL    = 6.12
# In the others, creating a CQ of erdma can stop a processor (docs/upstream/erdma-cq-lock.md).
ERDMA_KERNEL = 7.3
FLAGS     = -short
DURATION  = 60m
PLATFORMS = linux/arm64 linux/arm linux/s390x darwin/arm64 freebsd/amd64 windows/amd64 $(if $(ALL),linux/ppc64 linux/riscv64 netbsd/amd64 openbsd/amd64)

# Debian packages, by what needs them: the lab; the generator and the tests against C; arm64.
DEBS_lab   = qemu-system-x86 kmod iproute2 xz-utils zstd faketime
DEBS_test  = $(DEBS_lab) clang gcc libc6-dev libibverbs-dev librdmacm-dev curl wget rdmacm-utils ibverbs-utils ibverbs-providers perftest crun iperf3
DEBS_arm64 = $(DEBS_test) qemu-system-arm qemu-user
DEBS_s3    = $(DEBS_test) g++

# Packages with tests that want a real kernel. tests/driver is a module, tests/hosts needs two machines, tests/nic an adapter, tests/s3 programs of others.
LAB_PKGS  = ./cmd/verbs/internal/abicheck ./uverbs ./cm ./rconn ./rmsg ./rsock ./rdmatest ./s3rdma/... ./examples/s3 ./examples/valkey/valkeyrdma ./cmd/verbs $(addprefix ./cmd/verbs/internal/,abi cli info perf) $(filter-out ./tests/driver/ ./tests/hosts/ ./tests/mutants/ ./tests/nic/ ./tests/parts/ ./tests/s3/ ./tests/suites/ ./tests/typecheck/ ./tests/workload/,$(wildcard ./tests/*/)) ./tests/faults/harness
SOME_PKGS = $(filter-out ./tests/bench/ ./tests/soak/,$(LAB_PKGS))

# What programs import; programs that tests run; packages that use unsafe, or whose tests exercise it, but for those of
# test-race: the race detector checks pointers too. With -p tests that wait leave the processors to others.
LIB_PKGS    = . ./abi ./cm/... ./mmap ./rconn ./rdmadev ./rdmatest ./rmsg ./provider/... ./providertest ./rsock ./s3rdma/... ./soft ./uverbs ./verbstest
PROGRAMS    = ./tests/bench/... ./cmd/verbs ./examples/... ./exporter/cmd/...
UNSAFE_PKGS = ./abi ./mmap ./providertest ./internal/engine ./internal/host ./internal/sys ./internal/udp ./soft/... ./uverbs

help: ## show this
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: fetch ## write, read back and compare over RDMA, on a real kernel
	$(LAB) build/verbs demo

# What the lab needs is fetched and built beside the tests that need no lab. Those that need it wait for a third of their
# time, so two machines run at a time.
test: deps-test build ## run the tests that a change needs, in a quarter of an hour
	@{ $(LAB) --kernel $(KERNEL) --nic connectx --userland bookworm-security fetch && $(LAB) --kernel $(ERDMA_KERNEL) --nic erdma --userland bookworm-security fetch; } >build/fetch.txt 2>&1 & fetch=$$!; \
	$(MAKE) test-host test-race && { wait $$fetch || { cat build/fetch.txt; exit 1; }; }
	LAB_PARALLEL=2 $(MAKE) -j 2 test-lab test-hosts test-nic bench-quick

test-all: ## run every test, in parts that docs/test-parts.md lists and a row of it reports, all or PART=fuzz-1
	$(GO) run ./tests/parts $(PART)

test-host: deps-test build build/promtool build/c/liberdma build/c/libmlx5 ## run the tests that need no kernel, on a device in user space
	$(GO) run ./gen -check -out abi
	$(GO) run ./gen/ifc -check -out lab/connectx/internal/ifc
	$(GO) test -timeout 20m -p $$((2 * $$(nproc))) work
	cd tests/driver && GOWORK=off $(GO) test ./toy

test-race: deps-test ## run the tests of drivers, and random calls of the verbs, under the race detector
	CGO_ENABLED=1 $(GO) test -race $(FLAGS) ./provider/... ./tests/model

# With -short, tests leave out what a device in user space has shown.
test-lab: deps-test fetch ## run the tests that need a kernel on KERNEL (6.12); with FLAGS= all of them, and long rounds
	$(LAB) --kernel $(KERNEL) test -timeout 20m $(FLAGS) $(LAB_PKGS)
	cd tests/driver && LAB_KERNEL=$(KERNEL) GOWORK=off $(GO) test -timeout 5m $(EXEC) ./softroce

test-kernels: bench-c ## run test-lab on every kernel
	@.github/each.sh "$(KERNELS)" '$(MAKE) test-lab KERNEL=$$v'

test-hosts: deps-test fetch ## run the short tests of two machines on a wire
	LAB_PEER=6.12 $(GO) test -short -timeout 15m $(EXEC) ./tests/hosts

test-nic: deps-test fetch build/c/libmlx5 build/c/liberdma build/c/dc ## run C programs and rdma-core's tests on an emulated ConnectX and an erdma, the shortest pass of each
	$(LAB) --nic connectx --userland bookworm-security test -short -timeout 10m ./cmd/verbs/internal/abicheck ./tests/nic ./provider/mlx5
	LABTEST_DEVICE=mlx5_0 $(LAB) --nic connectx,connectx-ib --userland bookworm-security test -short -timeout 10m -run 'TestAdapter|TestUcmatose' ./tests/rdmadev ./tests/interop
	$(LAB) --kernel $(ERDMA_KERNEL) --nic erdma --userland bookworm-security test -short -timeout 10m ./tests/nic ./provider/erdma

nic: deps-test build build/c/dc ## run them on KERNELS, with releases of libmlx5 and link layers, and write build/nic.md; FLAGS= for all
	.github/nic.sh table nic "$(KERNELS)" $(FLAGS)

adapter-table: deps-test build build/c/libmlx5 build/c/liberdma ## run the tests of all packages on an emulated ConnectX, with both link layers, and on an erdma, on KERNELS, and write build/adapter-table.md; FLAGS= for long rounds
	PKGS="$(SOME_PKGS)" .github/nic.sh table adapter-table "$(KERNELS)" $(FLAGS)

adapter: deps-test build build/c/libmlx5 build/c/liberdma ## run the tests of the driver for ConnectX, and of its faults, on KERNELS with an emulated one
	.github/nic.sh driver "$(KERNELS)"

test-arm64: deps-arm64 build ## run the tests that need a kernel on an emulated arm64 machine, and those of the drivers for ConnectX and erdma with pages of 4 and 16 KiB
	@.github/each.sh "4096 16384" 'GOARCH=arm64 $(GO) test $(FLAGS) -count 1 -skip AgainstC -exec "qemu-aarch64 -p $$v" ./provider/mlx5 ./provider/erdma'
	GOARCH=arm64 $(GO) build -o build/lab-arm64 ./lab/rdmalab
	GOARCH=arm64 $(GO) build -o build/arm64/ $(PROGRAMS)
	LAB_ARCH=arm64 GOARCH=arm64 $(GO) test $(FLAGS) -p 1 -timeout 40m -skip BarrierInstructions $(EXEC) ./abi ./mmap $(SOME_PKGS)

test-peers: deps-test build ## run the tests against C with the newest release of rdma-core, of Debian sid
	SOFT_PEERS=all LAB_USERLAND=sid $(GO) test $(FLAGS) -timeout 30m $(EXEC) ./tests/interop

# Modules are fetched, and the toolchain is copied and changed, below build/suites.
suites: ## run the test suites of net/http, crypto/tls and other projects over package rsock, beside TCP
	$(GO) test -v -count 1 -timeout 60m $(ONLY) ./tests/suites -suites

# Each run writes a file, and s3doc fails if one has failed. S3_PEERS is a folder with the programs of elbencho and hipObject.
s3: deps-s3 fetch build/judges/vgwrdma build/judges/versitygw/vgwrdma ## have servers and clients that others wrote judge objects by RDMA, on rxe, the emulated ConnectX and two machines, and write build/s3.md; FLAGS= for all sizes, S3_PEERS=FOLDER for all judges
	rm -f build/judges/*.json
	S3_PEERS=$(abspath $(S3_PEERS)) $(LAB) --nic connectx test -json -timeout 20m $(FLAGS) $(ONLY) ./tests/s3 ./tests/s3/versitygw >build/judges/1.json; \
	LAB_NIC=connectx LAB_MEM=4608 LAB_PEER=6.12 $(GO) test -json -timeout 40m $(FLAGS) $(EXEC) -run TestObjects ./tests/hosts >build/judges/2.json; \
	TEST_ALL=1 $(GO) test -json -count 1 -timeout 20m -run TestVersitygw ./tests/s3/versitygw >build/judges/3.json; \
	$(GO) run ./tests/s3/s3doc build/judges/*.json >build/s3.md; s=$$?; cat build/s3.md; exit $$s

build/judges/versitygw/vgwrdma: $(wildcard tests/s3/versitygw/*.go tests/s3/versitygw/*/*.go s3rdma/*.go s3rdma/hipobj/*.go)
	rm -rf build/judges/versitygw
	$(GO) run ./tests/s3/versitygw build/judges/versitygw

# The programs are from a module, which is fetched once. The others are made with vgwrdma.
build/judges/vgwrdma: $(wildcard tests/s3/mkpeers/*.go tests/s3/mkpeers/testdata/*.c tests/s3/mkpeers/testdata/*/*.go)
	$(GO) run ./tests/s3/mkpeers build/judges

valkey: deps-test build ## load a valkey-server over RDMA, beside TCP and then for 10 minutes, with valkey-go and go-redis
	cd examples/valkey && $(GO) run ./mkserver "$(CURDIR)/build/valkey-server"
	$(LAB) --accel dilated --timeout 30m sh examples/valkey/load.sh compare 1s
	$(LAB) --timeout 30m sh examples/valkey/load.sh last 10m

# What Go parses as a duration may name a unit twice.
soak: fetch ## keep all layers busy for DURATION (60m) on each DEVICE (rxe0 siw0; soft with a bad network; mlx5_0 erdma_0), with pauses of PACE
	@.github/each.sh "$(or $(DEVICE),rxe0 siw0 soft)" 'case $$v in mlx5*) export LAB_NIC=connectx LABTEST_DEVICE=$$v ;; erdma*) export LAB_KERNEL=$(ERDMA_KERNEL) LAB_NIC=erdma LABTEST_DEVICE=$$v ;; esac; \
		LAB_TIMEOUT=$(DURATION)20m $(GO) test -v -timeout $(DURATION)15m $(EXEC) ./tests/soak \
		-run "TestSoak/^$$v$$" -duration $(DURATION) -pace $(or $(PACE),0s) -seed $(or $(SEED),0)'

race: deps-test build ## vet all code for the race detector, and run the tests of drivers and some of the lab's under it
	CGO_ENABLED=1 $(GO) vet -race work
	CGO_ENABLED=1 $(GO) test -race -count 1 ./provider/...
	CGO_ENABLED=1 $(GO) test -race -p 1 -timeout 15m $(EXEC) ./uverbs ./cm ./rconn ./rmsg ./rsock ./tests/model

upstream: deps-test build ## run the programs of docs/upstream, which show defects of the kernel: some crash the lab's machine
	$(GO) test -v -count 1 -timeout 60m ./docs/upstream -lab "$(CURDIR)/$(LAB)"

lint: vet-platforms ## gofmt, modules, vet, staticcheck, other platforms, known vulnerabilities
	.github/lint.sh

tidy: ## go mod tidy, of all modules
	.github/modules.sh -tidy

# Where the kernel runs no 386 programs, only types are checked.
test-builds: ## run the tests that need no kernel with checks of pointers, without the kernel's devices, and on 386
	$(GO) test -gcflags=github.com/goverbs/verbs/...=-d=checkptr $(FLAGS) -skip AgainstC $(UNSAFE_PKGS)
	$(GO) test -tags nordma $(FLAGS) ./internal/host ./internal/udp ./soft/...
	GOARCH=386 $(GO) test -c -o build/386.test .
	if build/386.test -test.run '^$$' >/dev/null; then GOARCH=386 $(GO) test $(FLAGS) -p $$((2 * $$(nproc))) -skip AgainstC $(LIB_PKGS); else $(GO) run ./tests/typecheck linux/386 $(LIB_PKGS); fi

# The root package is for programs on every system.
vet-platforms: ## check the types of the packages that programs import, and of the command, for PLATFORMS; ALL=1 for go vet on more
	$(GO) run ./tests/typecheck "$(PLATFORMS)" $(LIB_PKGS) ./cmd/verbs $(if $(ALL),./exporter/...)
	GOOS=plan9 GOARCH=amd64 $(GO) build .
	@test -z "$(ALL)" || .github/each.sh "$(PLATFORMS)" 'GOOS=$${v%/*} GOARCH=$${v#*/} $(GO) vet $(LIB_PKGS) ./cmd/verbs ./exporter/...'

cover: ## measure what the tests on a device in user space cover, into build/cover.out
	@mkdir -p build
	$(GO) test -short -coverprofile build/cover.out -coverpkg ./... ./...
	$(GO) tool cover -func build/cover.out >build/cover.txt && tail -n 1 build/cover.txt

api-diff: ## list how the API differs from that of the commit BASE (origin/main), into build/api.txt
	.github/api-diff.sh $(or $(BASE),origin/main)

flakes: ## run the tests of PKGS (those that wait for networks) N (1) times beside loads of 8 and 30, shuffled, with GOMAXPROCS 1, 2 and 8
	.github/flakes.sh $(or $(N),1) $(or $(PKGS),./cm ./rconn ./rmsg ./rsock ./s3rdma/... ./soft/... ./verbstest ./internal/engine ./internal/udp)

fuzz: ## run every fuzz test for FUZZTIME (10s), as many at a time as there are processors, or those of SHARE=1/4
	.github/fuzz.sh $(or $(FUZZTIME),10s) $(SHARE)

# With the packages whose tests need no kernel; more that depend on them; those whose tests on a kernel are tried last.
MUTATED = ./internal/roce ./internal/engine ./provider/... ./cm/... ./rsock ./rmsg ./s3rdma/... ./lab/connectx/... ./lab/erdma
DEPENDING = ./rconn ./soft/... ./uverbs ./verbstest ./tests/rdmadev ./tests/scenarios
ON_KERNEL = ./cm ./rconn ./rmsg ./rsock ./rdmatest ./s3rdma/... ./uverbs ./tests/privileges ./tests/rdmadev ./tests/scenarios
mutants: deps-test fetch build/c/liberdma build/c/libmlx5 ## change the code of packages, or of MUTATED, in N (60) small ways that follow from SEED (1), and print what no test notices; fail if tests notice less than LEAST per cent
	$(GO) run ./tests/mutants -n $(or $(N),60) -seed $(or $(SEED),1) -least $(or $(LEAST),0) -then "$(DEPENDING)" -kernel "$(ON_KERNEL)" $(MUTATED)

faults: deps-test fetch ## cause faults under load, all or RUN=TestKill/rxe0/rmsg
	FAULTS=all $(LONG) $(ONLY) ./tests/faults/harness

hosts: deps-test build ## put two machines on a wire and cause faults there, all or RUN=TestNetem/rxe
	LAB_KERNEL=6.1 LAB_PEER=7.3 $(LONG) $(ONLY) ./tests/hosts
	LAB_KERNEL=6.12 LAB_PEER=6.1 $(LONG) $(ONLY) ./tests/hosts

hosts-nic: deps-test build ## the same with emulated adapters
	LAB_NIC=connectx LAB_PEER=6.12 $(LONG) $(or $(ONLY),-run 'TestConnectX|TestCheck|TestPingMesh') ./tests/hosts
	LAB_NIC=connectx-ib LAB_PEER=6.12 $(LONG) $(or $(ONLY),-run TestConnectXDCLoss) ./tests/hosts
	LAB_KERNEL=$(ERDMA_KERNEL) LAB_NIC=erdma LAB_PEER=$(ERDMA_KERNEL) $(LONG) $(or $(ONLY),-run 'TestERDMA|TestCheck/erdma') ./tests/hosts

generate: deps-test ## regenerate package abi, the layouts of the emulated adapter, and the structures of tests/driver/toy
	$(GO) generate ./abi ./lab/connectx/internal/ifc
	$(GO) run ./gen -header tests/driver/toy/toy-abi.h -out tests/driver/toy

# Runs $(2), which records figures in build/$@, for the part $(1) of the page: what fails is "not measured" there.
define bench
	@rm -rf build/$@ && mkdir -p build/$@
	@export LAB_WRITE="$(CURDIR)/build/$@" BENCH_RECORDS="$(CURDIR)/build/$@"; $(2); s=$$?; $(GO) run ./tests/bench/benchdoc $(1) build/$@ && exit $$s
endef

bench: deps-test build bench-c ## measure in the lab with dilated time, beside C, and write docs/benchmarks.md
	$(call bench,lab,LAB_ACCEL=dilated LAB_MEM=4096 $(LONG) ./tests/bench -reps 20 -lasting 40ms)

bench-native: deps-test build bench-c ## measure posting and polling at full speed, beside libibverbs and cgo, and write docs/benchmarks.md
	CGO_ENABLED=1 $(GO) build -tags bench_cgo -o build/native-cgo ./tests/bench/native
	$(call bench,native,LAB_KERNEL=uml $(LONG) -run TestNative ./tests/bench -native -reps 30)

bench-mlx5: deps-test build build/c/mlx5 ## measure posting and polling on mlx5 without an adapter, beside libmlx5, and write docs/benchmarks.md
	$(call bench,adapter,$(GO) test -v -count 1 -run TestMLX5 ./tests/bench -native -reps 60)

bench-erdma: deps-test build build/c/erdma ## measure posting and polling on erdma without an adapter, beside liberdma, and write docs/benchmarks.md
	$(call bench,erdma,$(GO) test -v -count 1 -run TestErdma ./tests/bench -native -reps 60)

bench-quick: fetch ## count the instructions of posting and polling, and fail if there are 5 % more than recorded
	$(call bench,check counted,LAB_ACCEL=icount $(GO) test $(EXEC) -run 'TestNative|TestMLX5|TestErdma' ./tests/bench -counted)

# C programs beside the library's. The emulated machine would take long to compile them.
vpath %.c tests/bench/c tests/nic/testdata provider/mlx5/testdata provider/erdma/testdata
bench-c: $(patsubst tests/bench/c/%.c,build/c/%,$(wildcard tests/bench/c/*.c))
build/c/%: %.c $(wildcard tests/bench/c/*.h providertest/c/*.h) | deps-test
	@mkdir -p build/c
	gcc -O2 -Wall -Werror -Itests/bench/c -Iprovidertest/c -o $@ $< -Wl,--as-needed -lrdmacm -lmlx5 -libverbs

# Debian's package would also start a server.
build/promtool:
	mkdir -p build/prometheus && cd build/prometheus && { apt-get download prometheus || { $(SUDO) apt-get update && apt-get download prometheus; } } && dpkg-deb -x prometheus_*.deb .
	mv build/prometheus/usr/bin/promtool $@ && rm -r build/prometheus

# The kernel, before tests whose time is limited.
fetch: deps-lab build
	$(LAB) --kernel $(KERNEL) fetch

# native-go is the program that rings no doorbell.
build: ## build the programs into build/
	$(GO) build -o build/ $(PROGRAMS)
	$(GO) build -o $(LAB) ./lab/rdmalab
	$(GO) build -overlay tests/bench/native/testdata/overlay.json -o build/native-go ./tests/bench/native

release: ## build the programs of a release, with their parts and checksums, into build/release
	.github/release.sh

release-check: release ## try a release: build it twice, check it, install and import the module from a proxy in a folder
	.github/release-check.sh

# The packages are looked up first, so that nothing is done, and no password asked, when they are there.
deps-%:
	@dpkg -s $(DEBS_$*) >/dev/null 2>&1 || { $(SUDO) apt-get update && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(DEBS_$*); }

.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*## .*/\1/p' Makefile) bench-c fetch

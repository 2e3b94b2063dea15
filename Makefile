# A thin face on meson and ninja: every target is one or two lines. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help run build test check lint fresh install deb bench bench-check asan tsan fuzz stress witness outages many compare format clean order soak-instances vm pulse vm-restarts attacks kills shapes

SECS ?= 60
ROUNDS ?= 200
prefix ?= /usr/local

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## install what is missing, build, start `berth dev` on http://127.0.0.1:7420
	@exec build/berth dev $(ARGS)

build: ## build/berth with gcc; without npm: make build OPTIONS=-Dpage=false
	@tools/install-packages build
	@[ -f build/build.ninja ] || CC=gcc tools/configure build -Dtests=false $(OPTIONS)
	@ninja -C build berth

test: ## install, build with gcc and clang, run everything; closes with `N passed, N failed`
	@tools/install-packages test
	@tests/run $(ARGS)

check: ## for people at work: the tree's rules, unit tests, some of the end-to-end cases; three minutes
	@tools/install-packages test
	@tests/run tree recipes unit quick

fresh: ## as on a Debian 12 that was just installed (root): clone, make run, the tour, Ctrl-C, make test
	@tests/fresh $(ARGS)

install: build ## program, units, rules, docs below DESTDIR and prefix (/usr/local)
	@DESTDIR=$(DESTDIR) prefix=$(prefix) tools/install

deb: build ## a Debian package in build/
	@tools/deb

bench: build ## compare with nginx and with other queues on this machine; ARGS=--peers: only the queues (bench/run --help)
	@tools/install-packages bench
	@bench/run $(ARGS)

bench-check: ## every row and every peer of the benchmark can be measured (some minutes; the figures mean nothing)
	@tools/install-packages bench
	@CC=gcc tools/configure build -Dtests=true && ninja -C build
	@BERTH_BENCH_CASES=1 tests/e2e/run -v -j 1 -k test_bench.

lint: build ## the tree's rules, and what clang-tidy, luacheck, shellcheck and pyflakes find; half a minute
	@tools/install-packages test
	@tests/tools/lint

asan: ## unit and end-to-end tests under the address and undefined-behaviour sanitisers
	@tools/install-packages test
	@tests/run asan e2e-asan

tsan: ## unit and end-to-end tests under the thread sanitiser
	@tools/install-packages test
	@tests/run tsan e2e-tsan

fuzz: ## each libFuzzer program for SECS seconds (60)
	@tools/install-packages test
	@tools/fuzz $(SECS)

stress: build ## memory runs out in a cgroup: who is ended, and how the agent answers (root; two minutes)
	@tools/stress $(ARGS)

vm: ## the cases that want a real Debian 12 with systemd, in a virtual machine; ARGS=--shell to look around (tests/vm/run --help)
	@tools/install-packages test
	@CC=gcc tools/configure build -Dtests=true && ninja -C build && tests/vm/run $(ARGS)

pulse: ## how late a machine answers at worst while its memory runs out, in the virtual machine; wants a host that is idle
	@tools/install-packages test
	@CC=gcc tools/configure build -Dtests=true && ninja -C build && tests/vm/run --only pulse $(ARGS)

vm-restarts: ## 20 restarts, kills and upgrades under 10 jobs and 10 deployments, in the virtual machine
	@$(MAKE) --no-print-directory vm ARGS="-k test_twenty"

JOBS ?= 200000
NODES ?= 50
order: build ## whose job is next over three instances with full nodes: no lower priority first, another tenant's one behind JOBS (100000)
	@tools/install-packages test
	@BERTH_E2E_ORDER=$(if $(filter command line,$(origin JOBS)),$(JOBS),100000) tests/e2e/run -v -j 1 -k test_order.

soak-instances: build ## JOBS (200000) on NODES (50) of three instances that are killed and frozen all the time
	@tools/install-packages test
	@ninja -C build all
	@BERTH_E2E_JOBS=$(JOBS) BERTH_E2E_NODES=$(NODES) tests/e2e/run -v -k Fleet.test_killed_frozen_and_said_twice

witness: build ## jobs and deployments over ROUNDS (200) of partitions, frozen, stopped and killed agents: never two at once; a minute without server or store; 50 restarts; 200 and 500 placed
	@tools/install-packages test
	@BERTH_WITNESS_ROUNDS=$(ROUNDS) BERTH_E2E_RESTARTS=50 tests/e2e/run -v -j 1 -k over_many_rounds -k test_fence.Away -k test_restarts_of_the_agent -k 200_deployments -k 500_deployments $(ARGS)

outages: build ## Redis away for 60 s and emptied, under load, 20 times each (an hour; BERTH_OUTAGES, BERTH_OUTAGE_S)
	@BERTH_OUTAGES=$${BERTH_OUTAGES:-20} BERTH_OUTAGE_S=$${BERTH_OUTAGE_S:-60} tests/e2e/run -k test_redis_outage -j 1 -v

attacks: build ## what callers, nodes and memory notice while others attack (tests/e2e/attacks.py --help); wants an idle machine
	@tools/install-packages test
	@tests/e2e/attacks.py $(ARGS)

kills: build ## a million jobs at full speed, 20 times kill -9: is everything there that was answered (tests/e2e/kills.py --help); some minutes
	@tools/install-packages test
	@tests/e2e/kills.py $(ARGS)

shapes: build ## JOBS (1000000) of mixed needs and keys on NODES (50), instances and nodes killed and frozen all the time: never more than there is (tests/e2e/shapes.py --help); half an hour for each store
	@tools/install-packages test
	@tests/e2e/shapes.py --jobs $(if $(filter command line,$(origin JOBS)),$(JOBS),1000000) --nodes $(NODES) $(ARGS)

MANY ?= 100000
many: build ## MANY (100000) jobs that wait and as many that run, on one Redis with three instances; ten times as many that wait, there and in the embedded store
	@tools/install-packages test
	@CC=gcc tools/configure build -Dtests=true && ninja -C build
	@BERTH_E2E_MANY=$(MANY) tests/e2e/run -v -j 1 -k test_many.

OPS ?= 10000000
compare: build ## the embedded store and the one in Redis given OPS (10000000) equal random calls, one by one and in crowds; fast steps and verbs in Redis
	@tools/install-packages test
	@ninja -C build tests/store/test_redis_same tests/store/test_redis_crowd tests/store/test_redis_steps
	@STORE_OPS=$$(($(OPS) / 3)) build/tests/store/test_redis_same
	@STORE_OPS=$$(($(OPS) / 3)) build/tests/store/test_redis_crowd
	@STORE_OPS=$$(($(OPS) / 100)) build/tests/store/test_redis_steps

format: ## clang-format over every C file
	@git ls-files -co --exclude-standard '*.c' '*.h' | xargs clang-format -i

clean: ## remove the build directories
	rm -rf build build-asan build-tsan build-fuzz

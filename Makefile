# Keepstone: build, test, show, measure. `make help` lists the targets.
#
# Targets install the packages that they need by apt-get (as root, or with sudo).

# Where `make install` puts files, below DESTDIR. mount(8) looks for its helpers in /sbin only.
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
SBINDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/sbin,$(PREFIX)/sbin)
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
LIBEXECDIR ?= $(PREFIX)/libexec/keepstone
DATADIR ?= $(PREFIX)/share
MANDIR ?= $(DATADIR)/man
UNITDIR ?= $(PREFIX)/lib/systemd/system
UDEVDIR ?= $(PREFIX)/lib/udev/rules.d
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
CARGO ?= cargo
# The directory in which .ci, the tests and the benchmarks keep their downloads and builds.
WORK := .work
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Profile of cargo: release, or dist (with link-time optimization, for packages and measurements).
PROFILE ?= release
RELEASE = $(TARGET)/$(PROFILE)
BENCH = $(RELEASE)/keepstone-bench
BUILD = $(CARGO) build --profile $(PROFILE)
# cargo-nextest and cargo-deny, if the machine lacks them.
TOOLS := $(abspath $(WORK))/tools/bin
export PATH := $(PATH):$(TOOLS)
export KEEPSTONE ?= $(abspath $(RELEASE)/keepstone)

# Whether `make build` also builds the program of `keepstone bench`: yes or empty. Packages have it.
WITH_BENCH ?= $(if $(filter dist,$(PROFILE)),yes)
# Features of the keepstone command: object-store (attach to S3 and others), ublk (needs libclang).
FEATURES ?=
ALL_FEATURES := --features keepstone/object-store,keepstone/ublk
# Generated calls per seed of the campaign; there are 60 seeds.
CAMPAIGN_OPS ?= 20000
# Preemptions in a schedule: times that it takes the processor from a thread that could go on.
LOOM_PREEMPTIONS ?= 3
# The engine that `make crash-campaign` explores (bpfs without it), and whose planted bugs `make
# crash-score` judges (all without it): bpfs, cache, scmfs, model, pmbd.
ENGINE ?=
# Minutes of processor time of the score for each bug (without it: all workloads), and a file in
# which it notes the results, to continue from there.
SCORE_MINUTES ?=
SCORE_RESULTS ?=
# Minutes for each family of crash states.
CRASH_MINUTES ?= 30

# Measurements of `make bench-scmfs`, and their options (--quick, --strict).
SCMFS_MEASURED ?= ratios iozone postmark scaling misses aging
SCMFS_BENCH ?=

# Seconds of `make fuzz`, for each target.
FUZZ_SECONDS ?= 300

.PHONY: help build demo test quick loom loom-arena check bench bench-quick bench-scmfs bench-programs paper install uninstall deb rpm wheel book campaign crash-campaign crash-score nvdimm-test dax-programs-test vm-test systemd-test foreign-tests foreign-bugs torture machine-torture fuzz clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 17

build: ## target/release/keepstone, libkeepstone.so, man pages and completions of shells
	$(BUILD) --package keepstone --package preload $(if $(WITH_BENCH),--package bench) $(addprefix --features=keepstone/,$(FEATURES))
	$(RELEASE)/keepstone generate $(RELEASE)/share

demo: build ## a pool in DRAM, mounted; real programs on it while the server is killed (2 minutes after a build)
	scripts/demo.sh

# The suites run the same program as the other tests, built once and with assertions. Naming --lib
# puts the library into the directory of the program. Both commands name the whole workspace:
# without one package, others could have fewer features and would be built twice.
test: export KEEPSTONE = $(abspath $(TARGET)/debug/keepstone)
test: loom-arena ## all tests: of the workspace, models, and suites of the field against a mount (as root)
	scripts/lib/packages.sh fuse3 attr acl libclang1-14 gcc libc6-dev liburing-dev libaio-dev e2fsprogs xfsprogs btrfs-progs rsync valgrind util-linux binutils
	scripts/lib/cargo-tools.sh $(TOOLS) cargo-nextest
	$(CARGO) build --workspace --lib --bin keepstone --tests $(ALL_FEATURES)
	LOOM_MAX_PREEMPTIONS=$(LOOM_PREEMPTIONS) $(CARGO) nextest run --workspace $(ALL_FEATURES)
	$(CARGO) test --workspace --doc
	scripts/test/mount/run.sh all
	LAYOUT=scmfs scripts/test/mount/run.sh all
	scripts/test/run/run.sh all
	LAYOUT=scmfs scripts/test/run/run.sh together
	LAYOUT=scmfs scripts/test/run/run.sh pjdfstest
	scripts/test/run/run.sh --cache sqlite
	scripts/test/run/run.sh --cache rocksdb
	scripts/test/run/run.sh --cache copies
	scripts/test/run/run.sh --cache backups
	scripts/test/run/run.sh --direct all
	scripts/test/bdev/run.sh all
	scripts/test/python.sh
	scripts/test/security/run.sh all

# Left out: tests that mount a file system or need another user.
QUICK := arena bpfs direct engines mounts namespace nbd objects os pmbd pool scmfs vfs
QUICK_TESTS := not (test(a_full_shm) | test(a_strangers_file)) & (kind(lib) | not package(/^(pmem|posix|crashsim)$$/))
quick: ## formatting, and the tests that need no root and no mount (2 minutes after a build)
	$(CARGO) fmt --all --check
	scripts/lib/cargo-tools.sh $(TOOLS) cargo-nextest
	$(CARGO) nextest run $(addprefix --package=,$(QUICK)) --package=pmem --package=posix --package=crashsim \
	    --filterset '$(QUICK_TESTS)'

loom: loom-arena ## locks, allocator, gate of processes, families, epochs and windows through every schedule (two minutes)
	LOOM_MAX_PREEMPTIONS=$(LOOM_PREEMPTIONS) $(CARGO) test --package direct --package pmem --package posix --lib -- model::

# Models of the shared arena, for which all of its code is built. Models of other crates are among
# their tests.
loom-arena:
	LOOM_MAX_PREEMPTIONS=$(LOOM_PREEMPTIONS) RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(TARGET)/loom \
	    $(CARGO) test --release --package arena --lib

check: ## formatting, lints, documentation, licences, scripts
	scripts/lib/packages.sh libclang1-14 shellcheck
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets $(ALL_FEATURES) -- -D warnings
	$(CARGO) clippy --package keepstone -- -D warnings
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(TARGET)/loom \
	    $(CARGO) clippy --release --package arena --tests -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items
	scripts/lib/cargo-tools.sh $(TOOLS) cargo-deny
	$(CARGO) deny --log-level error check --hide-inclusion-graph bans licenses sources
	shellcheck -x -P SCRIPTDIR .ci/run scripts/*.sh scripts/*/*.sh scripts/*/*/*.sh

bench bench-quick bench-scmfs bench-programs paper: PROFILE := dist
bench: ## measure against peers in the same run; results into docs/measurements (20 minutes)
	$(BUILD) --package keepstone --package preload --package bench
	scripts/lib/peers.sh $(WORK)/peers
	mkdir -p $(WORK)/bench
	$(BENCH) traffic --save $(WORK)/bench/traffic.json
	$(BENCH) engine --save $(WORK)/bench/engine.json
	$(BENCH) mount --save $(WORK)/bench/mount.json
	$(BENCH) direct --save $(WORK)/bench/direct.json
	$(BENCH) fuse --save $(WORK)/bench/fuse.json
	$(BENCH) bdev --save $(WORK)/bench/bdev.json
	scripts/lib/packages.sh nbdkit qemu-utils
	$(BENCH) nbd --save $(WORK)/bench/nbd.json
	$(BENCH) chell --save $(WORK)/bench/chell.json
	$(BENCH) cached --dram --save $(WORK)/bench/cached-dram.json
	$(BENCH) cached --save $(WORK)/bench/cached.json
	scripts/lib/packages.sh sqlite3
	$(BENCH) sensitivity --save $(WORK)/bench/sensitivity.json
	$(BENCH) report $(WORK)/bench/traffic.json $(WORK)/bench/engine.json \
	    $(WORK)/bench/mount.json $(WORK)/bench/direct.json $(WORK)/bench/fuse.json \
	    $(WORK)/bench/bdev.json $(WORK)/bench/nbd.json $(WORK)/bench/chell.json \
	    $(WORK)/bench/cached-dram.json $(WORK)/bench/cached.json \
	    $(WORK)/bench/sensitivity.json

bench-quick: ## the same in two minutes, for a first look; changes no document
	$(BUILD) --package keepstone --package preload --package bench
	scripts/lib/peers.sh $(WORK)/peers
	$(BENCH) traffic
	$(BENCH) engine --quick
	$(BENCH) mount --quick
	$(BENCH) direct --quick
	$(BENCH) chell --quick
	$(BENCH) cached --quick
	$(BENCH) fuse --quick
	$(BENCH) bdev --quick

bench-scmfs: ## the aims of SCMFS, with BPFS for comparison: ratios, IOzone, PostMark, threads, misses, aging (30 minutes; SCMFS_BENCH=--quick: 8)
	scripts/lib/packages.sh valgrind
	$(BUILD) --package bench
	mkdir -p $(WORK)/bench
	for what in $(SCMFS_MEASURED); do \
	    $(BENCH) $$what $(SCMFS_BENCH) --save $(WORK)/bench/$$what.json || exit 1; done
	$(BENCH) report $(SCMFS_MEASURED:%=$(WORK)/bench/%.json)

bench-programs: build ## whole programs on tmpfs, under `keepstone run` and on a cached mount (12 minutes)
	scripts/bench/programs.sh

# Operations of the papers' benchmarks are divided by this (1000 at most). Measurements are short
# unless it is 1.
PAPER_SCALE ?= 1
# The pages to write: bpfs scmfs pmal pmbd chell. Empty: all.
PAPER_PAGES ?=

paper: build ## the figures of the papers from measurements and models, into docs/papers (as root; an hour; PAPER_SCALE=20: 15 minutes)
	scripts/lib/packages.sh e2fsprogs xfsprogs gcc libc6-dev libdb5.3-dev liburing-dev patch python3 sqlite3
	bash -euc '. scripts/lib/servers.sh; need_server pg_ctlcluster postgresql'
	KEEPSTONE=$(abspath $(RELEASE)/keepstone) \
	    python3 scripts/paper/paper.py --scale $(PAPER_SCALE) $(PAPER_PAGES)

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
SONAME := libkeepstone.so.$(firstword $(subst ., ,$(VERSION)))
HELPERS := mount.fuse.keepstone umount.fuse.keepstone umount.keepstone
UNITS := keepstone-bdev@.service keepstone-volumes.service
RULES := 60-keepstone.rules
ZSH := zsh/$(if $(filter /usr,$(PREFIX)),vendor-completions,site-functions)
COMPLETIONS := bash-completion/completions/keepstone $(ZSH)/_keepstone fish/vendor_completions.d/keepstone.fish

install: ## what `make build` has made, into PREFIX (/usr/local), with the helpers of mount(8) in SBINDIR (/sbin)
	@for file in keepstone libkeepstone.so share/man1/keepstone.1; do \
	    [ -e $(RELEASE)/$$file ] || { \
	        echo "make install: $(RELEASE)/$$file is missing; run 'make build' before, as an ordinary user" >&2; exit 1; }; done
	install -D -m 755 $(RELEASE)/keepstone $(DESTDIR)$(BINDIR)/keepstone
	[ ! -e $(BENCH) ] || install -D -m 755 $(BENCH) $(DESTDIR)$(LIBEXECDIR)/keepstone-bench
	install -D -m 644 $(RELEASE)/libkeepstone.so $(DESTDIR)$(LIBDIR)/libkeepstone.so.$(VERSION)
	ln -sfn libkeepstone.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sfn $(SONAME) $(DESTDIR)$(LIBDIR)/libkeepstone.so
	install -D -m 644 include/keepstone.h $(DESTDIR)$(INCLUDEDIR)/keepstone.h
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|' \
	    packaging/keepstone.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/keepstone.pc
	install -d $(DESTDIR)$(SBINDIR) $(DESTDIR)$(MANDIR)/man1 $(DESTDIR)$(MANDIR)/man8
	for helper in $(HELPERS); do ln -sfn $(BINDIR)/keepstone $(DESTDIR)$(SBINDIR)/$$helper || exit 1; done
	install -m 644 $(RELEASE)/share/man1/*.1 $(DESTDIR)$(MANDIR)/man1
	install -m 644 packaging/man/mount.fuse.keepstone.8 $(DESTDIR)$(MANDIR)/man8
	for helper in $(wordlist 2,9,$(HELPERS)); do \
	    ln -sfn mount.fuse.keepstone.8 $(DESTDIR)$(MANDIR)/man8/$$helper.8 || exit 1; done
	for file in $(COMPLETIONS); do \
	    name=$${file##*/}; [ $$name != keepstone ] || name=keepstone.bash; \
	    install -D -m 644 $(RELEASE)/share/completions/$$name $(DESTDIR)$(DATADIR)/$$file || exit 1; done
	install -d $(DESTDIR)$(UNITDIR) $(DESTDIR)$(UDEVDIR)
	for unit in $(UNITS); do \
	    sed 's|@BINDIR@|$(BINDIR)|' packaging/systemd/$$unit >$(DESTDIR)$(UNITDIR)/$$unit || exit 1; done
	sed 's|@BINDIR@|$(BINDIR)|' packaging/udev/$(RULES) >$(DESTDIR)$(UDEVDIR)/$(RULES)
	install -D -m 644 packaging/sysusers/keepstone.conf $(DESTDIR)$(SYSUSERSDIR)/keepstone.conf
	[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

uninstall: ## remove what `make install` has installed, with the same PREFIX
	rm -f $(DESTDIR)$(BINDIR)/keepstone $(DESTDIR)$(LIBDIR)/libkeepstone.so $(DESTDIR)$(LIBDIR)/libkeepstone.so.* \
	    $(DESTDIR)$(INCLUDEDIR)/keepstone.h $(DESTDIR)$(LIBDIR)/pkgconfig/keepstone.pc \
	    $(UNITS:%=$(DESTDIR)$(UNITDIR)/%) $(DESTDIR)$(UDEVDIR)/$(RULES) $(DESTDIR)$(SYSUSERSDIR)/keepstone.conf \
	    $(DESTDIR)$(LIBEXECDIR)/keepstone-bench $(HELPERS:%=$(DESTDIR)$(SBINDIR)/%) $(DESTDIR)$(MANDIR)/man1/keepstone.1 $(DESTDIR)$(MANDIR)/man1/keepstone-*.1 \
	    $(HELPERS:%=$(DESTDIR)$(MANDIR)/man8/%.8) $(COMPLETIONS:%=$(DESTDIR)$(DATADIR)/%)
	-rmdir $(DESTDIR)$(LIBEXECDIR) 2>/dev/null
	[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

deb: PROFILE := dist
deb: ## packages for Debian and its descendants into target/deb
	scripts/lib/packages.sh debhelper lintian libclang1-14 gcc libc6-dev fakeroot
	mkdir -p $(TARGET)/deb
	debian/rules clean binary DEBS=$(abspath $(TARGET)/deb)
	debian/rules clean
	lintian --fail-on error,warning --tag-display-limit 0 $(TARGET)/deb/*_$(VERSION)_*.deb

rpm: PROFILE := dist
rpm: FEATURES := object-store ublk
rpm: build ## packages for Fedora, RHEL, SUSE and their descendants into target/rpm
	command -v rpmbuild >/dev/null || scripts/lib/packages.sh rpm
	rpmbuild -bb --nodeps --quiet --define 'source $(CURDIR)' --define 'version $(VERSION)' \
	    --define '_topdir $(abspath $(TARGET)/rpm/build)' --define '_rpmdir $(abspath $(TARGET)/rpm)' \
	    --define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' packaging/rpm/keepstone.spec
	rm -rf $(TARGET)/rpm/build

wheel: PROFILE := dist
wheel: ## the package for Python, with the library in it, into target/wheel
	$(BUILD) --package preload
	python3 python/wheel.py $(RELEASE)/libkeepstone.so $(TARGET)/wheel

book: ## the documents as a site, into target/book (the first time, builds mdbook)
	scripts/lib/cargo-tools.sh $(TOOLS) mdbook
	mdbook build --dest-dir $(abspath $(TARGET)/book) docs

campaign: ## millions of generated calls against the model and the kernel, kills, damaged pools (nightly)
	KEEPSTONE_OPS=$(CAMPAIGN_OPS) $(CARGO) test --release --package bpfs --package scmfs --test it conformance::generated
	KEEPSTONE_OPS=8000000 $(CARGO) test --release --package posix --test it differential
	KEEPSTONE_OPS=1000000 $(CARGO) test --release --package preload --test it direct
	KEEPSTONE_TIMES=20 $(CARGO) test --release --package pmcache --test it crash
	KEEPSTONE_KILLS=5000 $(CARGO) test --release --package bpfs --package scmfs --test it processes
	$(CARGO) build --release --package keepstone --lib --bin keepstone --package preload
	KEEPSTONE_KILLS=200 $(CARGO) test --release --package keepstone --test it deaths
	KEEPSTONE_HOSTILE=100000 $(CARGO) test --release --package bpfs --package scmfs --test it hostile

# Guided by coverage, under AddressSanitizer, with a nightly toolchain; else mutations of valid
# inputs.
fuzz: ## bytes that strangers can send: sockets, pools, streams, caches, mounts, stores (16 targets of FUZZ_SECONDS each)
	KEEPSTONE_NBD_SESSIONS=100000 $(CARGO) test --release --package nbd --test it fuzz
	if $(CARGO) +nightly --version; then \
	    scripts/lib/packages.sh g++ && scripts/lib/cargo-tools.sh $(TOOLS) cargo-fuzz && \
	    $(CARGO) run --release --package fuzzing --bin fuzz-seeds fuzz/corpus && cd fuzz && \
	    for target in $$($(CARGO) +nightly fuzz list); do \
	        $(CARGO) +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; done; \
	else \
	    KEEPSTONE_FUZZ_SECONDS=$(FUZZ_SECONDS) $(CARGO) test --release --package fuzzing --test it -- --test-threads 1 --nocapture; \
	fi

crash-campaign: build ## power failures: pairs, triples, random and evolved sequences, threads, deaths (2 hours, 8 GB)
	$(RELEASE)/keepstone crashtest $(addprefix --engine=,$(ENGINE)) --length 3 --minutes $(CRASH_MINUTES) \
	    --ops 60000 --fuzz 20000 --schedules 20000 --deaths 756 --threads $$(nproc)

crash-score: build ## which planted bugs the crash tests find, of all engines or of ENGINE=scmfs (hours)
	$(RELEASE)/keepstone crashtest --score $(addprefix --engine=,$(ENGINE)) $(addprefix --minutes=,$(SCORE_MINUTES)) \
	    $(addprefix --results=,$(SCORE_RESULTS)) --threads $$(nproc)

nvdimm-test: build ## pmem, Chell-Direct on DAX file systems, ublk and the kernel's NBD client, on an emulated machine with an NVDIMM
	scripts/machine/nvdimm.sh
	scripts/machine/bdev.sh
	scripts/machine/direct.sh

dax-programs-test: build ## real programs on ext4 and XFS with DAX, in the emulated machine (40 minutes)
	scripts/machine/direct-programs.sh

vm-test: build ## boot a virtual machine from a served block device, and kill both ends (half a minute)
	scripts/machine/vm-boot.sh

systemd-test: deb ## boot a Debian with systemd, the packages and lines of fstab, three times (ten minutes, as root)
	scripts/test/systemd.sh

foreign-tests: build ## the test suites of git, coreutils and CPython on tmpfs and under `keepstone run` (nightly: hours)
	scripts/test/foreign.sh

foreign-bugs: build ## patterns of bugs in other software on persistent memory: found or not (two minutes)
	scripts/lib/packages.sh gcc libc6-dev
	scripts/test/foreign-bugs/run.sh

torture: build ## kill the mount's server under databases, commits and builds (two minutes)
	scripts/test/torture.sh
	LAYOUT=scmfs scripts/test/torture.sh

machine-torture: build ## kill the emulated machine itself, boot it again, verify (10 minutes)
	scripts/machine/torture.sh
	LAYOUT=scmfs scripts/machine/torture.sh
	scripts/machine/bdev-torture.sh

clean: ## remove everything built or fetched
	$(CARGO) clean
	rm -rf $(WORK)

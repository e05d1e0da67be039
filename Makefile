# `make demo` shows the main job; `make test` runs every test. Both install what they need (Debian).

CARGO ?= cargo
# Nextest gives each test its own process and a time limit; plain `cargo test` works too.
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)

.PHONY: help demo demo-engine test soak bench lint doc build release bundled deps deps-test

help:
	@echo "make demo         build, start a one-manager cluster, run a service, kill the manager, start it again"
	@echo "make demo-engine  the same with a real Docker Engine as the worker (root)"
	@echo "make test         every test, a tenth of the full counts (root for the Docker Engine tests)"
	@echo "make soak         the same tests with full counts"
	@echo "make bench        benchmarks, beside the disk's own sync rate"
	@echo "make lint         formatting, clippy, documentation"
	@echo "make release      optimised binaries; FEATURES=mimalloc for more writes per second and 20 MB more memory"
	@echo "make bundled      optimised binaries with RocksDB built in (about 15 minutes)"

deps:
	@scripts/deps build

deps-test:
	@scripts/deps test

build: deps
	$(CARGO) build --locked

demo: build
	@scripts/demo

demo-engine: deps-test build
	@scripts/demo --engine

test: deps-test
ifeq ($(NEXTEST),yes)
	$(CARGO) nextest run --locked $(if $(CI),--profile ci)
else
	$(CARGO) test --locked --lib --bins --tests -- --test-threads 2
endif

soak: deps-test
	SWARM_TEST_SCALE=1.0 $(MAKE) test

bench: deps
	$(CARGO) bench --locked $(if $(FEATURES),--features $(FEATURES))

lint: deps doc
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings

doc: deps
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links --document-private-items" $(CARGO) doc --locked --no-deps --quiet

release: deps
	$(CARGO) build --locked --release $(if $(FEATURES),--features $(FEATURES))

bundled: deps
	ROCKSDB_COMPILE=1 ROCKSDB_INCLUDE_DIR=rocksdb/include CXX=clang++ $(CARGO) build --locked --release --features bundled

# What developers and CI run. Every target works on a clean clone with what CONTRIBUTING.md names.
CARGO ?= cargo
GO ?= go
REAL := tests/real
BIN := $(REAL)/.bin
PROXY := target/debug/watershed
PAIRS ?= 6000
# Most tests wait for programs most of the time, so several of them share a core.
export RUST_TEST_THREADS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))

.PHONY: help build build-tests release release-artifacts dist test test-rust test-allocations test-artifacts test-real test-python test-release test-kine test-upgrade test-e2e test-otel book conformance robustness soak mutants loom real lint bench bench-abuse bench-real bench-allocations bench-functions simulate-nodes simulate-kubelets screenshots experiment demo cluster documents fmt clean memory fuzz fuzz-guided simulate-terminals simulate-cluster

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-17s %s\n", $$1, $$2}'

build: ## Build the proxy (debug)
	$(CARGO) build --locked

release: ## Build the proxy, optimized, for trying and developing
	$(CARGO) build --locked --release

DIST := target/dist/watershed
dist: ## Build the proxy as it is shipped: optimized across crates, without the lab
	$(CARGO) build --locked --profile dist --no-default-features

release-artifacts: ## Everything that is released, for amd64 and arm64 (docs/releases.md); VERSION=0.3.0, SIGNING_KEY=FILE
	python3 release --version "$(VERSION)" $(if $(SIGNING_KEY),--signing-key "$(SIGNING_KEY)") $(RELEASE_FLAGS)

real: ## Build kube-apiserver, etcd, kubectl, helm and the test harness from Go modules (cached)
	cd $(REAL) && ./build.sh

test: test-rust test-allocations test-artifacts test-real ## Run every test

test-rust: real ## Rust tests: pure modules, simulated upstream, real kube-apiserver
	$(CARGO) test --locked --workspace

test-allocations: ## Fails if an event or a read allocates more than benches/allocations/limits.yaml allows
	$(CARGO) bench --locked --workspace --profile dev --bench allocations -- --pods 200 --watchers 50 --events 100 --reads 200 --limits benches/allocations/limits.yaml

# The program that the Rust tests start, too. `cargo build` would compile every dependency again: without the
# features that only tests want.
build-tests:
	$(CARGO) test --locked --workspace --no-run

test-real: build-tests real ## Go tests: real clients through the proxy, in front of a real kube-apiserver
	cd $(REAL) && WATERSHED_BIN=$(CURDIR)/$(PROXY) $(GO) test -count=1 -timeout 35m ./...

test-artifacts: ## Archives, image layouts, checksums, signatures and notes of a release, of small programs
	python3 -m unittest discover --start-directory release/tests

test-python: build-tests real ## Python's kubernetes client through the proxy; installs the client, so not part of test
	python3 -m venv $(BIN)/python
	$(BIN)/python/bin/pip install --quiet --requirement tests/python/requirements.txt
	$(BIN)/python/bin/python tests/python/test_client.py

RELEASE ?= v1.32.13
test-release: build-tests ## The real clients in front of another release of kube-apiserver; RELEASE=v1.32.13
	cd $(REAL) && ./build-release.sh $(RELEASE)
	cd $(REAL) && REAL_BIN=.bin-$(RELEASE) WATERSHED_BIN=$(CURDIR)/$(PROXY) $(GO) test -count=1 -timeout 35m ./...

test-kine: build-tests ## The real clients in front of API servers that store objects in kine and SQLite
	cd $(REAL) && ./build-kine.sh
	# Without the tests that delete in etcd what kine cannot delete at once.
	cd $(REAL) && REAL_BIN=.bin-kine WATERSHED_BIN=$(CURDIR)/$(PROXY) $(GO) test -count=1 -timeout 20m -skip '^(TestDeletionsOfOneVersionAreAllDelivered|TestEventsThatExpireTogetherVanishTogether)$$' . ./clusters

OLD_RELEASE ?= v1.36.3
test-upgrade: build-tests real ## Upgrades and downgrades in front of a real older kube-apiserver and the present one; OLD_RELEASE=v1.36.3
	cd $(REAL) && ./build-release.sh $(OLD_RELEASE)
	cd $(REAL) && REAL_OLD_BIN=.bin-$(OLD_RELEASE) WATERSHED_BIN=$(CURDIR)/$(PROXY) $(GO) test -count=1 -timeout 40m -v -run '^(TestAnswersFollowTheReleaseOfTheServer|Test(Watches|Answers).*DuringAnUpgrade)$$' ./clusters

test-e2e: build-tests ## Kubernetes' own end-to-end tests of the API, through the proxy (a quarter of an hour, and minutes to build them)
	$(REAL)/build.sh e2e
	cd $(REAL) && WATERSHED_BIN=$(CURDIR)/$(PROXY) E2E=1 $(GO) test -count=1 -timeout 90m -v -run '^TestKubernetesEndToEnd$$' ./clusters

test-otel: ## Traces, with the feature otel
	$(CARGO) test --locked --workspace --features watershed/otel --test proxy traces::

conformance: build-tests real ## Every combination of read options and 6,000 generated requests, compared with upstream (minutes)
	cd $(REAL) && WATERSHED_BIN=$(CURDIR)/$(PROXY) CONFORMANCE_FULL=1 CONFORMANCE_PAIRS=$(PAIRS) $(GO) test -count=1 -timeout 20m -v -run '^TestAnswersConformToUpstream$$' ./clusters

ROBUSTNESS_SECONDS ?= 600
ROBUSTNESS_SEED ?= 1
ROBUSTNESS := ROBUSTNESS_SEED=$(ROBUSTNESS_SEED) $(CARGO) test --locked --workspace --test robustness answers -- --nocapture
robustness: build-tests real ## Answers, events and consistent reads checked through replicas under faults (docs/robustness.md); ROBUSTNESS_SECONDS=600, _SEED=, _EVENTS=, _READS=
	ROBUSTNESS_SECONDS=$(ROBUSTNESS_SECONDS) $(ROBUSTNESS)
	cd $(REAL) && WATERSHED_BIN=$(CURDIR)/$(PROXY) ROBUSTNESS_SECONDS=$(ROBUSTNESS_SECONDS) $(GO) test -count=1 -timeout 24h -v -run '^TestConsistentReadsAreLinearizable$$' ./clusters

soak: build-tests ## Half an hour of the same, in which memory, tasks and descriptors must stay flat; SOAK_SECONDS=1800
	ROBUSTNESS_SOAK=1 ROBUSTNESS_SECONDS=$(or $(SOAK_SECONDS),1800) $(ROBUSTNESS)

memory: build-tests real ## More data than fits into the memory limit, in both encodings, with hostile clients; MEMORY_SECONDS=600
	cd $(REAL) && WATERSHED_BIN=$(CURDIR)/$(PROXY) MEMORY_SECONDS=$(or $(MEMORY_SECONDS),600) $(GO) test -count=1 -timeout 24h -v -run '^TestMemoryStaysBelowItsLimit$$' ./clusters

mutants: ## Builds broken on purpose, each of which a test must catch (docs/robustness.md; an hour); MUTANTS= names some
	tests/mutants/run.sh $(MUTANTS)

loom: ## The store's threads in all interleavings, with more preemptions than in make test; LOOM_MAX_PREEMPTIONS=5
	LOOM_MAX_PREEMPTIONS=$(or $(LOOM_MAX_PREEMPTIONS),5) $(CARGO) test --locked --workspace --test store

fuzz: ## Mutated inputs for each parser of outside input; FUZZ_SECONDS=3600 each, FUZZ_SEED=
	FUZZ_SECONDS=$(or $(FUZZ_SECONDS),3600) $(CARGO) test --locked --workspace --test fuzz -- --nocapture

fuzz-guided: ## The same parsers but those of the proxy itself, under libFuzzer, which looks at coverage; FUZZ_SECONDS=60 each, FUZZ_TARGETS=
	FUZZ_SECONDS=$(or $(FUZZ_SECONDS),60) crates/fuzz/guided/run.sh $(FUZZ_TARGETS)

documents: ## Write what is made from the code: docs/configuration.md, docs/config.schema.json, the table of types
	WATERSHED_WRITE_DOCUMENTS=1 $(CARGO) test --locked --test documents the_reference_is_what_the_code_makes
	cd $(REAL) && WATERSHED_WRITE_DOCUMENTS=1 $(GO) test -count=1 -run '^TestTableIsWhatTheGeneratorWrites$$' ./internal/transcode

BOOK := target/book-source
book: ## The documents as a web site in target/book, by mdBook (cargo install mdbook)
	rm -rf $(BOOK) target/book && mkdir -p $(BOOK)
	git ls-files -z -- '*.md' '*.yaml' docs deploy/Dockerfile examples crates/protocol/examples LICENSE \
		| tar --create --null --files-from=- | tar --extract --directory=$(BOOK)
	sed -e 's|](|](docs/|' -e 's|docs/\.\./||' docs/SUMMARY.md > $(BOOK)/SUMMARY.md
	mdbook build
	.ci/book-links target/book

lint: ## Formatting, clippy, go vet
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked --no-default-features -- -D warnings
	cd $(REAL) && test -z "$$(gofmt -l .)" && $(GO) vet ./... && cd tools && $(GO) vet ./...

fmt: ## Format the sources
	$(CARGO) fmt
	cd $(REAL) && gofmt -w .

# Figures are of the program as it is shipped.
MEASURED := $(DIST)
$(MEASURED): dist

bench: $(MEASURED) ## What serving costs, beside a server that only sends (docs/benchmarks.md); BENCH= takes flags
	$(CARGO) bench --locked --bench serving -- --watershed $(MEASURED) $(BENCH)

bench-abuse: $(MEASURED) ## What abusers cost, and what others notice of them; BENCH= takes flags
	$(CARGO) bench --locked --bench serving -- --watershed $(MEASURED) --only abuse $(BENCH)

bench-real: $(MEASURED) real ## The same in front of a real kube-apiserver, which is measured too
	$(CARGO) bench --locked --bench serving -- --watershed $(MEASURED) --kube-apiserver $(BENCH)

# What the nodes cost, phase by phase.
NODE_FIGURES := $(CURDIR)/target/lab/nodes.json

simulate-nodes: $(MEASURED) real ## 50 nodes with a proxy each, 10,000 pods, with and without a zone tier; upstream's bytes, requests and CPU. Takes NODES=, NODE_PODS=, NODE_AGENTS=, NODE_SECONDS=, NODE_CHANGES=, NODE_ZONE_REPLICAS=, NODE_FLAGS=, NODE_ZONE_FLAGS=, NODE_CHECKPOINTS=, NODE_SETUPS= (a pattern), NODE_TIMEOUT=, NODE_AUDIT_LOG= (a file for the API server's requests)
	mkdir -p $(dir $(NODE_FIGURES)) && rm -f $(NODE_FIGURES)
	cd $(REAL) && WATERSHED_BIN=$(abspath $(MEASURED)) NODES=$(or $(NODES),50) NODE_PODS=$(or $(NODE_PODS),10000) NODE_AGENTS=$(or $(NODE_AGENTS),3) \
		NODE_SECONDS=$(or $(NODE_SECONDS),60) NODE_CHANGES=$(or $(NODE_CHANGES),50) NODE_ZONE_REPLICAS=$(or $(NODE_ZONE_REPLICAS),2) \
		NODE_FLAGS="$(NODE_FLAGS)" NODE_ZONE_FLAGS="$(NODE_ZONE_FLAGS)" NODE_CHECKPOINTS=$(NODE_CHECKPOINTS) NODE_FIGURES=$(NODE_FIGURES) \
		NODE_AUDIT_LOG=$(abspath $(NODE_AUDIT_LOG)) \
		$(GO) test -count=1 -timeout $(or $(NODE_TIMEOUT),60m) -v -run 'TestNodeProxiesSaveUpstreamTraffic$(if $(NODE_SETUPS),/$(NODE_SETUPS))' ./clusters
	tests/lab/nodes.py $(NODE_FIGURES) --out target/lab/nodes.svg

simulate-kubelets: $(MEASURED) real ## 5,000 kubelets with 20 watches of single secrets each; the reviews that they cost the API server. Takes KUBELETS=, KUBELET_SECRETS=, KUBELET_WATCH_SECONDS=, KUBELET_SECONDS=, KUBELET_CHANGES= (pods replaced a minute)
	cd $(REAL) && WATERSHED_BIN=$(abspath $(MEASURED)) KUBELETS=$(or $(KUBELETS),5000) KUBELET_SECRETS=$(or $(KUBELET_SECRETS),20) \
		KUBELET_WATCH_SECONDS=$(or $(KUBELET_WATCH_SECONDS),300) KUBELET_SECONDS=$(or $(KUBELET_SECONDS),600) KUBELET_CHANGES=$(or $(KUBELET_CHANGES),60) \
		$(GO) test -count=1 -timeout 60m -v -run TestKubeletsCostFewReviews ./clusters

simulate-terminals: $(MEASURED) real ## 50 terminals that refresh kubectl get pods; upstream's lists, bytes and CPU. Takes TERMINAL_PODS=, TERMINAL_REFRESHES=, TERMINAL_PAUSE_MS=
	cd $(REAL) && WATERSHED_BIN=$(abspath $(MEASURED)) TERMINAL_PODS=$(or $(TERMINAL_PODS),2000) TERMINAL_REFRESHES=$(or $(TERMINAL_REFRESHES),15) \
		TERMINAL_PAUSE_MS=$(or $(TERMINAL_PAUSE_MS),2000) $(GO) test -count=1 -timeout 30m -v -run 'TestTerminalsCostUpstreamLittle' ./clusters

simulate-cluster: $(MEASURED) real ## A whole cluster's clients behind one proxy: control plane, kubelets, controllers, people; the share of reads from memory. Takes FLEET_NODES=, FLEET_DEPLOYMENTS=, FLEET_SECONDS=
	$(REAL)/build.sh controlplane
	cd $(REAL) && WATERSHED_BIN=$(abspath $(MEASURED)) FLEET_NODES=$(or $(FLEET_NODES),20) FLEET_DEPLOYMENTS=$(or $(FLEET_DEPLOYMENTS),20) \
		FLEET_SECONDS=$(or $(FLEET_SECONDS),60) $(GO) test -count=1 -timeout 30m -v -run 'TestWholeClusterReadsFromMemory' ./clusters

bench-allocations: ## What an event and a read allocate in the proxy; BENCH= takes flags
	$(CARGO) bench --locked --bench allocations -- $(BENCH)

bench-functions: ## The pure modules, function by function; BENCH= takes a filter
	$(CARGO) bench --locked --bench functions -- $(BENCH)

screenshots: ## The pictures of the status page in docs/images, made in a real Chromium (five minutes)
	WATERSHED_SCREENSHOTS=$(CURDIR)/docs/images $(CARGO) test --locked --test proxy the_status_page_works_in_a_browser -- --nocapture

experiment: release dist real ## What upstream pays by the number of clients, with the proxy and without, drawn (docs/experiments.md; a quarter of an hour)
	tests/lab/clients.sh

demo: ## The main job on a simulated upstream, with a live picture of what is saved
	$(CARGO) run --locked --release -- demo

cluster: release real ## A real API server with the proxy in front, until Ctrl-C; prints both kubeconfigs
	$(BIN)/cluster --proxy target/release/watershed

clean: ## Remove what was built
	$(CARGO) clean
	rm -rf $(BIN) $(BIN)-*

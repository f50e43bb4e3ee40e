# The README's two commands are `make demo` and `make test`; each works alone on a fresh machine with Go.
# PostgreSQL and RabbitMQ come from scripts/stack unless SUREFOOT_DATABASE_URL and SUREFOOT_AMQP_URL are set.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo drills test build lint fmt fuzz crash faults alerts check-deploy image vuln guards failover cluster soak bench bench-quick test-brokers test-pgbouncer screenshots stack-down clean need-go

ROUNDS ?= 20
SOAK ?= 20m
FUZZCOUNT ?= 50000
LINT := go tool -modfile=scripts/tools/go.mod golangci-lint
SCRIPTS := scripts/stack scripts/broker scripts/pgbouncer scripts/cluster scripts/with-stack scripts/alerts scripts/browser scripts/need-go scripts/fuzz scripts/e2e scripts/bench scripts/image scripts/vuln scripts/reprocess-dlq .ci/run

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' Makefile | while IFS='|' read -r target text; do printf '  make %-14s %s\n' "$$target" "$$text"; done

demo: build ## set up the local stack and run the whole way of an event on it, under a minute
	@scripts/with-stack bin/surefoot demo

drills: build ## set up the local stack and run every drill on it, under 5 minutes; DRILL="NAME..." runs some
	@scripts/with-stack bin/surefoot drill run $(or $(DRILL),--all)

test: need-go ## set up the local stack, vet and run all tests
	go vet ./...
	@scripts/browser path >/dev/null || echo 'no Chromium: the console is not tried in a browser; scripts/browser install'
	@scripts/with-stack go test -timeout 20m ./...

build: need-go ## build bin/surefoot
	go build -o bin/ ./cmd/...

lint: need-go ## golangci-lint, module files, shellcheck if it is installed
	go mod tidy -diff
	$(LINT) run --allow-parallel-runners --build-tags crash,guards
	@if command -v shellcheck >/dev/null; then shellcheck -x $(SCRIPTS); else echo "shellcheck is not installed: scripts not checked"; fi

fmt: need-go ## format all Go files (gofumpt, goimports)
	$(LINT) fmt

fuzz: need-go ## run every fuzz target on FUZZCOUNT (50000) inputs
	@scripts/fuzz $(FUZZCOUNT)

crash: need-go ## kill -9 at every step, then ROUNDS (20) times at random, and account for every message
	@scripts/with-stack go test -tags crash ./internal/crash -count=1 -timeout 90m -run 'TestCrash' -rounds $(ROUNDS)

test-brokers: need-go ## run all tests against RabbitMQ 3.10, 4.0 and 4.3 (as root, on Debian or Ubuntu)
	@for generation in 3.10 4.0 4.3; do echo "== RabbitMQ $$generation"; \
	  scripts/broker with $$generation go test -count=1 -timeout 30m ./... && scripts/broker down $$generation || exit 1; done

test-pgbouncer: need-go ## run the tests of what uses PostgreSQL through PgBouncer in transaction mode (installed on Debian or Ubuntu)
	@scripts/with-stack scripts/pgbouncer with go test -count=1 -timeout 30m ./internal/pg ./outbox ./relay ./consumer ./watchdog ./reconcile ./deadletter ./resilience/idempotency

faults: need-go ## restart, kill, block and cut the services under load, and account for every message
	@scripts/with-stack go test -tags crash ./internal/crash -count=1 -timeout 20m -parallel 2 -skip 'TestCrash|TestFailover|TestRestore|TestCluster|TestSoak'

failover: need-go ## promote a standby that lags, and restore a dump, under load, and account for every message
	@scripts/with-stack go test -tags crash ./internal/crash -count=1 -timeout 20m -v -run 'TestFailover|TestRestore'

cluster: need-go ## hurt a RabbitMQ cluster of three nodes under load, and account for every message
	@scripts/with-stack go test -tags crash ./internal/crash -count=1 -timeout 30m -v -run 'TestCluster'

soak: need-go ## SOAK (20m) of faults at random under load, and account for every message, memory and table sizes
	@scripts/with-stack go test -tags crash ./internal/crash -count=1 -timeout 0 -v -run 'TestSoak' -soak $(SOAK)

guards: need-go ## take each guard of docs/guarantees.md away once, in a copy: its test must fail; half an hour
	@scripts/with-stack go test -tags guards ./internal/guards -count=1 -timeout 90m -run Removed

bench: build ## every benchmark with all peers, in several rounds: more than an hour, on a machine that does nothing else
	@scripts/with-stack scripts/bench bin/surefoot

bench-quick: build ## each benchmark briefly, under two minutes; fails when a ratio misses half of its goal
	@scripts/with-stack scripts/bench bin/surefoot quick

screenshots: need-go ## make the console's pictures in docs/img, by Chromium (installed on Debian or Ubuntu)
	@scripts/browser install
	@scripts/with-stack go test ./internal/console -count=1 -run TestScreenshots -screenshots $(CURDIR)/docs/img

alerts: ## check the alert rules and make each fire (promtool, installed on Debian or Ubuntu)
	@scripts/alerts test

check-deploy: need-go ## decode the files of deploy/ for Compose and Kubernetes into their types, in a module of its own
	go -C deploy/check mod tidy -diff
	go -C deploy/check vet ./...
	go -C deploy/check test -count=1 ./...

image: need-go ## build the image by buildah (installed on Debian or Ubuntu), without a registry, and run it once
	@scripts/image

vuln: need-go ## known vulnerabilities that the code reaches (govulncheck); needs the database at vuln.go.dev, or GOVULNDB
	@scripts/vuln

stack-down: ## stop the local stack; its data stay
	@scripts/stack down

clean: ## remove what was built, and the local stack with its data
	rm -rf bin
	@scripts/stack reset

need-go:
	@scripts/need-go

# Every target installs what it needs into .venv and .tools; no service has to be started by hand.
PYTHON ?= python3
BIN := .venv/bin
DEMO_ARGS ?=
CHAOS_ARGS ?=
SOAK_ARGS ?=
PYTEST_ARGS ?=
SCREENSHOT_ARGS ?=
# Tests wait for processes about half of the time: two for each of two cores keep both busy.
TEST_PROCESSES ?= 4
# Tests start hundreds of Python processes: without bytecode files each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
TORCH ?= cpu
TORCH_VERSION := $(shell sed -n 's/^engine = \["torch==\([0-9.]*\)".*/\1/p' pyproject.toml)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
REDIS_TESTS := $(addprefix tests/property/, test_shared_tree.py test_quotas.py test_quota_windows.py test_shared_queue.py test_index_audit.py) \
	$(addprefix tests/conformance/, test_prefix_index.py test_quota_store.py) \
	$(addprefix tests/integration/radix_cache/, test_redis_scripts.py test_redis_functions.py test_redis_cluster.py test_index_maintenance.py \
	test_replica_reader.py test_namespaces.py test_feed_lease_store.py test_withdrawals.py) \
	$(addprefix tests/integration/, quotas/test_quota_race.py queueing/test_shared_turns.py queueing/test_shared_queue.py queueing/test_queue_shards.py \
	kv_index/test_shared_index.py kv_index/test_feed_takeover.py cli/test_index_commands.py)

.DEFAULT_GOAL := help
.PHONY: help demo test explore test-redis check test-engines test-sdks test-engine-alone test-bench-aiperf test-helm test-pythons release-files chaos soak \
	bench-overhead bench-road bench-index bench-tokenize bench-routing bench-validate bench-fairness bench-fleet bench-cells bench-isolation bench-quotas bench-engine bench-engine-gpu ladder docs \
	demo-model docs-site docs-plot clean images test-images test-observability test-browser test-envoy docs-screenshots audit proto

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.engine ## Run the whole product on this machine: workers, gateway, traffic, a table (DEMO_ARGS='--exit --json out.json')
	$(BIN)/radixgate demo $(DEMO_ARGS)

test: check .tools/openai-2/.done .tools/openai-3/.done .tools/anthropic/.done .tools/moto/.done ## Check the code and run all tests that need only this machine
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

explore: .venv/.dev ## Run the property tests with new and more examples
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --hypothesis-profile explore $(PYTEST_ARGS) \
		$$(grep -rlE "^(from|import) hypothesis" tests --include='test_*.py')

test-redis: .venv/.dev ## Run the tests of scripts and connections on Debian's Redis 7.0, the oldest supported version
	@if tests/debian_redis .tools/redis-7; then \
		RADIXGATE_TEST_REDIS=$(CURDIR)/.tools/redis-7/redis-server $(BIN)/python -m pytest $(REDIS_TESTS) $(PYTEST_ARGS); \
	else \
		echo "SKIPPED: test-redis, for the reason above"; \
	fi

check: .venv/.dev ## Check format, lint, types and import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

test-engine-alone: ## Test a copy of the embedded engine under Python 3.12 with its four packages (ENGINE_PYTHON: a Python that has them, or any 3.12)
	tests/engine_alone/run .tools/engine-alone $(ENGINE_PYTHON)

test-engines: .venv/.dev .tools/engines/.done .tools/llamacpp/.done ## Run real vLLM, SGLang and llama.cpp on the CPU behind the gateway (installs 4 GB)
	$(BIN)/python -m pytest tests/engines --timeout 600 $(PYTEST_ARGS)

test-sdks: .venv/.dev .tools/sdks/.done .tools/sdks-clients/.done ## Run the SDKs' own tests, many clients and a fuzzer against a gateway
	$(BIN)/python -m pytest tests/sdks --timeout 900 $(PYTEST_ARGS)

test-bench-aiperf: .venv/.dev .tools/aiperf/.done ## Compare radixgate bench with aiperf on one server (installs 1.2 GB)
	$(BIN)/python -m pytest tests/peers -s --timeout 600 $(PYTEST_ARGS)

test-pythons: ## Test the gateway on Python 3.12, 3.13 and 3.14, as far as this machine has them
	tests/pythons .tools

test-helm: .venv/.dev ## Lint and render the chart with a real helm
	helm/tests/run $(BIN)/python

images: ## Build the images of gateway and worker for the chart, with buildah, docker or podman (IMAGE_REGISTRY, IMAGE_TAG)
	helm/images/build

test-images: .venv/.dev ## Build both images with buildah, push them to a registry, pull and start them, and send a request (needs root)
	@if tests/images/prepare .tools/images; then \
		$(BIN)/python -m pytest tests/images --timeout 1800 $(PYTEST_ARGS); \
	else \
		echo "SKIPPED: test-images, for the reason above"; \
	fi

test-observability: .venv/.dev ## Test alerts with promtool, and every query of dashboard and alerts on a real Prometheus
	@if tests/debian_prometheus .tools/prometheus; then \
		$(BIN)/python -m pytest tests/observability $(PYTEST_ARGS); \
	else \
		echo "SKIPPED: test-observability, for the reason above"; \
	fi

test-browser: .venv/.dev .tools/browser/.done ## Click through the operator console in Debian's Chromium, and check its accessibility
	$(BIN)/python -m pytest tests/browser $(PYTEST_ARGS)

docs-screenshots: .venv/.dev .tools/browser/.done ## Take the pictures of the console that README and documentation show, of a real run
	$(BIN)/python -m tests.browser.docs_screenshots $(SCREENSHOT_ARGS) docs/pages/images

test-envoy: .venv/.dev .tools/envoy/.done ## Run a real Envoy that asks the gateway for the worker of each request, and carries it (installs 110 MB)
	$(BIN)/python -m pytest tests/envoy $(PYTEST_ARGS)

chaos: .venv/.dev ## Break Valkey, gateways and workers in turn under load; fail if a promise is broken (CHAOS_ARGS='--only valkey-full')
	$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

soak: .venv/.dev ## Send many requests; fail if memory is not flat (SOAK_ARGS='--requests 1000000')
	$(BIN)/python -m tests.soak $(SOAK_ARGS)

bench-overhead: .venv/.dev ## Measure added latency and throughput: the gateway, alone and behind Envoy (after make test-envoy), and smg
	$(BIN)/python -m tests.benchmarks.overhead $(BENCH_ARGS)

bench-road: .venv/.dev ## Print calls, microseconds and allocations of each stage of one request
	$(BIN)/python -m tests.benchmarks.road $(BENCH_ARGS)

bench-index: .venv/.dev ## Measure the cost of the shared prefix index, beside Dynamo's tree and one hash per block
	$(BIN)/python -m tests.benchmarks.index $(BENCH_ARGS)

bench-tokenize: .venv/.dev ## Measure the cost of a thousand prompt tokens, cold and turn by turn, beside the tokenizer alone
	$(BIN)/python -m tests.benchmarks.tokenise $(BENCH_ARGS)

bench-routing: .venv/.dev ## Compare routing policies on a public trace and generated ones, in simulated fleets, with upper bounds
	$(BIN)/python -m tests.benchmarks.routing $(BENCH_ARGS)

bench-validate: .venv/.dev ## Compare the simulator with NVIDIA's mock engine and router, and with real processes
	$(BIN)/python -m tests.benchmarks.routing.validate $(BENCH_ARGS)

bench-quotas: .venv/.dev ## Measure the cost of exact quotas with 1 to 100,000 tenants, and eight processes racing for one limit
	$(BIN)/python -m tests.benchmarks.quotas $(BENCH_ARGS)

bench-isolation: .venv/.dev ## Test whether a tenant can tell by timing what another has sent (Kolmogorov-Smirnov test)
	$(BIN)/python -m tests.benchmarks.isolation $(BENCH_ARGS)

bench-engine: .venv/.dev ## Measure the embedded engine beside transformers' generate on the same weights, and each of its features
	$(BIN)/python -m tests.benchmarks.engine $(BENCH_ARGS)

bench-engine-gpu: ## Measure the embedded engine beside nano-vllm and vLLM on one GPU, and the share of its memory bandwidth
	@$(MAKE) --no-print-directory .venv/.dev TORCH=$$(command -v nvidia-smi > /dev/null && echo gpu || echo $(TORCH))
	$(BIN)/python -m tests.benchmarks.engine_gpu $(BENCH_ARGS)

bench-fleet: .venv/.dev ## Count what requests cost Redis with 1 to 8 gateways, beside the figures of radixgate plan-fleet
	$(BIN)/python -m tests.benchmarks.fleet $(BENCH_ARGS)

bench-cells: .venv/.dev ## Simulate 2,000 workers and 50,000 tenants in ten cells, beside gateways in one cell that knows all
	$(BIN)/python -m tests.benchmarks.cells $(BENCH_ARGS)

bench-fairness: .venv/.dev ## Measure how tenants affect each other under each queue policy, simulated and with real processes
	$(BIN)/python -m tests.benchmarks.fairness $(BENCH_ARGS)

ladder: .venv/.dev ## Run the same requests on engines from naive to modern, one idea at a time; draw ladder.png
	$(BIN)/radixgate ladder --plot ladder.png $(BENCH_ARGS)

audit: .venv/.dev .tools/audit/.done ## Look for known vulnerabilities in the dependencies, and for risky constructs in the code
	.tools/audit/bin/bandit -q -r gateway policies radix_cache workers -c pyproject.toml
	$(BIN)/python -m tests.audit .tools/audit/bin/pip-audit

docs: .venv/.dev ## Write the generated parts of the reference pages again
	$(BIN)/python -m tests.house.generated

# The messages need at least the protobuf of the compiler that wrote them: an old compiler suits more installations.
proto: .tools/protoc/.done ## Write the Python messages of ext_proc.proto again
	.tools/protoc/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. gateway/endpoint_picker/ext_proc.proto

demo-model: .venv/.dev ## Train the tiny model of the demo again, in some minutes, and write it to gateway/demo/tiny-llama
	$(BIN)/python -m tests.demo_model gateway/demo/tiny-llama

docs-site: .venv/.dev ## Build the documentation site into build/site, and check every link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file docs/mkdocs.yml
	@echo "build/site/index.html"

docs-plot: .venv/.dev ## Run the demo and draw its figures as docs/pages/images/result.svg
	@mkdir -p build
	$(BIN)/radixgate demo --exit --json build/demo.json
	$(BIN)/python docs/plot.py build/demo.json docs/pages/images/result.svg

release-files: .venv/.dev ## Write the OpenAPI documents and the JSON schema of the settings into build/release
	$(BIN)/python -m tests.house.release_files build/release

clean: ## Remove everything that make has created
	rm -rf .venv .tools .radixgate .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip

# On Linux the usual torch brings CUDA, several gigabytes. The build for the CPU is taken from wherever pip is set up to
# look, else from PyTorch's own index, else the usual one is taken, as with `make demo TORCH=gpu`.
.venv/.torch-$(TORCH): pyproject.toml | .venv/bin/python
	@if [ "$(TORCH)" = cpu ] && [ "$$(uname -s)" = Linux ]; then \
		$(BIN)/pip install --quiet 'torch==$(TORCH_VERSION)+cpu' 2> /dev/null \
		|| $(BIN)/pip install --quiet --extra-index-url $(TORCH_CPU_INDEX) 'torch==$(TORCH_VERSION)+cpu' \
		|| $(BIN)/pip install --quiet 'torch==$(TORCH_VERSION)'; \
	else \
		$(BIN)/pip install --quiet 'torch==$(TORCH_VERSION)'; \
	fi
	@rm -f .venv/.torch-*
	@touch $@

.venv/.engine: pyproject.toml .venv/.torch-$(TORCH) | .venv/bin/python
	$(BIN)/pip install --quiet --editable '.[engine]'
	@touch $@

.venv/.dev: pyproject.toml .venv/.torch-$(TORCH) | .venv/bin/python
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@ .venv/.engine

.tools/engines/.done: tests/engines/install
	tests/engines/install $(PYTHON) .tools/engines

.tools/llamacpp/.done: tests/engines/install_llamacpp
	tests/engines/install_llamacpp $(PYTHON) .tools/llamacpp

# Two major versions of one SDK cannot share an environment: each has a directory of its own.
.tools/openai-2/.done: | .venv/bin/python
	$(BIN)/pip install --quiet --target .tools/openai-2 'openai>=2,<3'
	@touch $@

.tools/openai-3/.done: | .venv/bin/python
	$(BIN)/pip install --quiet --target .tools/openai-3 'openai>=3,<4'
	@touch $@

.tools/sdks/.done: tests/sdks/install | .venv/bin/python
	tests/sdks/install $(PYTHON) .tools/sdks

.tools/browser/.done: tests/browser/install | .venv/bin/python
	tests/browser/install $(PYTHON) .tools/browser

.tools/envoy/.done: tests/envoy/install | .venv/bin/python
	tests/envoy/install $(PYTHON) .tools/envoy

.tools/protoc/.done: | .venv/bin/python
	$(PYTHON) -m venv .tools/protoc
	.tools/protoc/bin/pip install --quiet 'grpcio-tools==1.74.0' 'setuptools<81'
	@touch $@

.tools/sdks-clients/.done: tests/sdks/clients/install | .venv/bin/python
	tests/sdks/clients/install $(PYTHON) .tools/sdks-clients

.tools/audit/.done: | .venv/bin/python
	$(PYTHON) -m venv .tools/audit
	.tools/audit/bin/pip install --quiet 'bandit>=1.9,<2' 'pip-audit>=2.9,<3'
	@touch $@

.tools/aiperf/.done: tests/peers/install_aiperf | .venv/bin/python
	tests/peers/install_aiperf $(PYTHON) .tools/aiperf

.tools/anthropic/.done: | .venv/bin/python
	$(BIN)/pip install --quiet --target .tools/anthropic 'anthropic>=2.10,<3'
	@touch $@

.tools/moto/.done: | .venv/bin/python
	$(BIN)/pip install --quiet --target .tools/moto 'moto[s3,server]>=5,<6'
	@touch $@

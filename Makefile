# Two commands matter: `make demo` and `make test`. Both set up everything they need on a fresh machine.

PYTHON := .venv/bin/python

SEEDS ?= 1000
RUNS ?= 100
SECONDS ?= 60
PAIRS ?= 15
# What tests, lints and documents are compiled by. `release`: the build that `build` makes serves them, too.
TEST_PROFILE ?= dev
export TEST_PROFILE
ONLY ?=
RESUME ?=

# Some machines ask Python to keep no compiled modules. Then each of the hundreds of processes that the tests start
# would compile all of PyTorch that it imports: seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup toolchain build build-ahead release-ahead demo test tidy docs docs-links figures lint test-rust sim storm planted \
	faults fixture crash test-spdk nvme-vm nvme-vm-short recovery test-torch test-ranks test-integrations \
	test-versions test-slow everywhere models bench bench-ranks bench-scale compare compare-spdk \
	compare-training test-compare instructions fuzz loom sanitize aarch64 miri paper gpu-step gpu-walk host-updates \
	pictures gpu gpu-build wheel sdist install uninstall clean
help: ## Show what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: toolchain ## Check the machine, install what is missing (Debian and Ubuntu), make the virtual environment
	@scripts/setup.sh

toolchain:
	@scripts/setup.sh build

build: toolchain ## Build the library and the tools; of what tests need, nothing is installed
	cargo build --release --workspace

demo: setup build ## Train a GPT plain and under a quarter of its memory; compare every bit
	@$(PYTHON) demo/demo.py

test: ## All tests; the end says which steps and which tests took longest
	@scripts/steps.py setup,build-ahead lint,test-rust,release-ahead test-compare build docs,crash,nvme-vm-short,sim \
		test-torch

# While setup downloads. What fails here fails again, with its text, in the step that needs it.
build-ahead:
	-@command -v cargo cc >/dev/null && cargo test -q --workspace --profile $(TEST_PROFILE) --no-run 2>/dev/null

# While tests wait for devices and time-outs. Cargo locks the two profiles apart.
release-ahead:
	-@nice cargo build -q --release --workspace 2>/dev/null

tidy: ## Line widths, names, circles of modules, words, summary lines: what no compiler looks at
	@python3 scripts/tidy/planted.py
	@python3 scripts/tidy/run.py
	@python3 scripts/docs/figures.py

docs: setup build ## The documents as a site, into target/site; fails where a link leads nowhere
	$(PYTHON) scripts/docs/planted.py
	$(PYTHON) scripts/docs/links.py
	$(PYTHON) scripts/docs/questions.py
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet

figures: ## Take what demo, compare, models and benches/fit.py measured into docs/figures, and into the tables of pages
	@python3 scripts/docs/figures.py --collect

docs-links: setup ## Links to other sites, which need a network
	$(PYTHON) scripts/docs/links.py --external

lint: setup tidy ## Formatting, lints, types, licences
	cargo fmt --all --check
	.venv/bin/ruff format --quiet --check
	.venv/bin/clang-format --dry-run --Werror torch-bridge/python/tidelog/native/*.h torch-bridge/python/tidelog/native/*.cpp
	.venv/bin/ruff check --quiet
	.venv/bin/mypy --no-error-summary
	cargo clippy --workspace --all-targets --profile $(TEST_PROFILE) -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --lib --quiet --profile $(TEST_PROFILE)
	scripts/kernels.sh
	.venv/bin/hadolint Dockerfile
	scripts/clang-tidy.sh
	scripts/deny.sh
	tests/planted.sh check

test-rust: setup ## The engine, the planner and the C ABI
	@scripts/test-rust.sh

# One release build serves all that follows: a build of a single package has dependencies with
# other features, so that most would be built twice.
sim: build ## The log against its model: SEEDS seeds of work, faults and power cuts; a fifth as many lives with lost devices
	target/release/tidelog-sim --seeds $(SEEDS)
	target/release/tidelog-sim --losses $$(($(SEEDS) / 5))

faults: setup ## Devices that shrink, refuse writes, go or fill up under load (a part of test-rust)
	cargo test -q -p tidelog-tests --test faults

crash: setup build ## Processes that commit, and commands that change a pool's devices, are killed; devices are lost; RUNS
	target/release/tidelog-crash --runs $(RUNS)
	target/release/tidelog-crash --runs $(RUNS) --sector 4096
	target/release/tidelog-crash --commands $$(($(RUNS) / 5))
	target/release/tidelog-crash --losses $$(($(RUNS) / 10))

test-spdk: setup ## The data path spdk over NVMe/TCP and vfio-user, where an SPDK is installed; REQUIRE=spdk: or fail
	cargo test -p tidelog-engine --features spdk --lib path
	cargo test -p tidelog-tests --features spdk --test spdk
	cargo test -p tidelog-bench --features spdk --test spdk

nvme-vm: setup ## The conformance suite and faults in a machine with emulated NVMe controllers
	tests/nvme-vm/run.sh

nvme-vm-short: setup build ## The part of it that there is always time for, where the machine can be had
	PLANS=plan-short IMAGES=100 tests/nvme-vm/run.sh

storm: build ## A million mixed operations of 16 threads on one pool, every byte compared, no ticket lost
	target/release/tidelog-storm

recovery: build ## What opening a pool of a million tensors costs
	target/release/tidelog-recovery

fixture: setup ## The committed pools of the present format version, made anew; never after its release
	cargo run -q -p tidelog-tests --bin tidelog-fixture

planted: setup ## Bugs planted on purpose: the simulation, or a loom model, must find each
	tests/planted.sh

fuzz: setup ## Every fuzz target for SECONDS seconds, two at a time
	@SECONDS_EACH=$(SECONDS) scripts/fuzz.sh

loom: setup ## The ticket protocol in every order that threads could run it
	@scripts/loom.sh

sanitize: setup build ## Engine, C ABI and the bridge's C++ under sanitizers, ThreadSanitizer where the toolchain can
	@scripts/sanitize.sh

aarch64: toolchain ## The library and the tools for aarch64; the engine's unit tests in an emulator, where there is one; 20 minutes
	@scripts/aarch64.sh

miri: setup ## Layout, checksums and planner under Miri, where the toolchain has it
	@scripts/miri.sh

# Kernels in Triton by its interpreter; the others are in test-slow.
COMPILED := $(addprefix tests/torch/test_compile.py::,test_every_storage_is_out_between_any_two_launches \
	test_what_a_kernel_only_reads_is_not_written_out_again)

# A third worker has the cores while others wait for devices, signals and time-outs.
test-torch: setup build ## The touch suite and the program matrix, on PyTorch
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -q -n 3 --dist loadfile --durations 10 -m "not slow" tests/torch
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -q --device fake -m "not slow" tests/torch/test_threads.py tests/torch/test_requests.py $(COMPILED)
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -q --device fake --host-memory -m "not slow" tests/torch/test_threads.py tests/torch/test_requests.py

test-ranks: setup build ## Distributed programs and ranks that fail, every mode; a part of it is in test-torch
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -q tests/torch/test_ranks.py tests/torch/test_async_uses.py

test-integrations: setup build ## Other libraries as they are on PyPI, in an environment of their own; the table of stacks in docs/integrations.md
	OMP_NUM_THREADS=1 scripts/test-integrations.sh

# Each version is installed, tested and removed again: 6 GB of disk, and 5 to 10 minutes each.
test-versions: setup build ## Tidelog with other versions of torch, each in a virtual environment of its own; VERSIONS="2.10.0 2.11.0"
	@scripts/versions.sh $(VERSIONS)

test-slow: setup build ## What takes hours: longer storms, small steps, every mode, touches under checkpoint, fuzzers
	@scripts/test-slow.sh

# Of the environments in TORCH, by default .venv where it is there, each torch has its part in C++ in the wheel.
WHEEL_TORCH = $(if $(filter undefined,$(origin TORCH)),,TORCH="$(TORCH)")
wheel: toolchain ## A wheel for glibc 2.28 and newer, into target/wheels; TORCH=environments; SPDK=1: with SPDK, for this glibc
	@$(WHEEL_TORCH) scripts/wheel.sh $(if $(SPDK),spdk)

sdist: toolchain ## The source as one archive, into target/wheels: `pip install` builds it where Rust is
	@scripts/wheel.sh sdist

INSTALL = PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)" DESTDIR="$(DESTDIR)" STRIP="$(STRIP)" scripts/install.sh
# docs/how-to/packaging.md has LIBDIR, DESTDIR and STRIP.
install: build ## Library, header, pkg-config file, tools, completions, man pages, into PREFIX (/usr/local)
	@$(INSTALL)

uninstall: ## Remove what `make install` wrote, with the same PREFIX and DESTDIR
	@$(INSTALL) uninstall

everywhere: setup build ## Each feature on the host, on a GPU and on ranks: bits, budget, whether it does what it is for; writes docs/everywhere.md
	@$(PYTHON) tests/torch/everywhere.py $(ONLY)

# Where the libraries cannot be installed, the programs that need them are named, and the rest runs.
MODELS_PYTHON = $$([ -x target/integrations/bin/python ] && echo target/integrations/bin/python || echo $(PYTHON))
models: setup build ## Programs found elsewhere in 35 % of their memory: bits, budget, time; resumes; ONLY=names; 1 hour
	-@scripts/integrations.sh
	$(MODELS_PYTHON) benches/models/models.py $(ONLY)

bench-ranks: setup ## One, two and four ranks on one pool: what they move together, and how fairly
	cargo bench -q -p tidelog-engine --bench ranks

bench-scale: setup ## GB/s over reactors, devices and transfer sizes, and what a machine with eight fast SSDs would do; ARGUMENTS="--help" says more
	@$(PYTHON) benches/scale.py $(ARGUMENTS)

instructions: setup ## Instructions of an operation by the part of the program, under valgrind's callgrind; ARGUMENTS="--help" says more
	$(PYTHON) benches/instructions.py $(ARGUMENTS)

bench: setup build ## What the hook, requests and the log cost, as ratios
	$(PYTHON) benches/hook.py
	$(PYTHON) benches/moves.py

paper: setup ## Every policy on TERAIO's models, recorded without their hardware; fails where a figure falls short
	$(PYTHON) benches/paper/record.py target/paper/traces
	cargo run --release -q -p tidelog-planner --example paper target/paper/traces target/paper.json

gpu-step: ## What a training step takes on a GPU, and why, by a model with two clocks; no GPU; 10 minutes; ARGUMENTS="--help" says more
	@cargo run --release -q -p tidelog-planner --example gpu-step -- $(ARGUMENTS)

gpu-walk: setup ## A step of gpu-step beside the walk of the real code, on a fake GPU in virtual time; ARGUMENTS="--help" says more
	@$(PYTHON) benches/gpu_walk.py $(ARGUMENTS)

host-updates: setup ## Updates on the host beside other orders, Llama3-8B in 24 GiB by the model of gpu-step; no GPU; ARGUMENTS="GIB" of host memory
	@mkdir -p target
	@PYTHONPATH=torch-bridge/python $(PYTHON) -m tidelog.models llama3-8b --gpu planner/machines/rtx-4090.json \
		--precision tf32 --checkpointing --micro-batch 4 --sequence 2048 > target/host-updates.json
	@cargo run --release -q -p tidelog-planner --example host-updates target/host-updates.json $(ARGUMENTS)

pictures: setup build ## The pictures of README.md, from the reports of the demo and of a planned step; needs Chromium
	$(PYTHON) scripts/pictures.py

compare: setup ## Tidelog against fio, DeepSpeed, safetensors, torch.save: PAIRS interleaved pairs, a table, a picture; ONLY=a part, RESUME=1; under 20 minutes
	cargo build --release -q -p tidelog-bench
	python3 benches/compare/compare.py --pairs $(PAIRS) --only "$(ONLY)" $(if $(RESUME),--resume)

compare-spdk: setup ## The path spdk against SPDK's own spdk_nvme_perf, over NVMe/TCP on the loopback, where an SPDK is installed
	cargo build --release -q -p tidelog-bench --features spdk
	python3 benches/compare/compare.py --pairs $(PAIRS) --devices spdk --output target/compare-spdk.json

compare-training: setup ## One training by ZeRO-Infinity, FSDP2, Tidelog: time, memory, losses; ONLY=, RESUME=1; 40 minutes
	cargo build --release -q -p tidelog-torch
	python3 benches/training/training.py --only "$(ONLY)" $(if $(RESUME),--resume)

test-compare: ## What compare, compare-training, bench-scale and test-integrations conclude from runs, without running any
	python3 benches/compare/test_compare.py
	python3 benches/test_scale.py
	python3 benches/training/test_training.py
	python3 benches/stacks/test_stacks.py

GPU_TOOLS = tidelog-doctor tidelog-bench tidelog-plan
GPU_TESTS = cargo test --release -q -p tidelog-gds --test gpu --no-run
gpu-build: ## What a machine with a GPU needs, into target/gpu: less than 64 MiB
	@mkdir -p target/gpu
	cargo build --release -q -p tidelog-torch $(GPU_TOOLS:%=-p %)
	$(GPU_TESTS)
	for tool in $(GPU_TOOLS); do strip -o target/gpu/$$tool target/release/$$tool || exit 1; done
	strip -o target/gpu/libtidelog.so target/release/libtidelog.so
	strip -o target/gpu/gpu-tests "$$($(GPU_TESTS) --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)"
	@[ "$$(du -sm target/gpu | cut -f 1)" -lt 64 ] || { du -sh target/gpu/*; exit 1; }

gpu: gpu-build ## Everything that needs a GPU; ends with 77 where there is none
	tests/hardware/gpu.sh target/gpu

clean: ## Remove everything that was built
	rm -rf target .venv

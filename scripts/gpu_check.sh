#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CUDA kernels on a machine that has a GPU, the CUDA toolkit, Python and PyTorch, and nothing else of ours. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
usage: scripts/gpu_check.sh build [SET] | check | sanitize | bench [--quick]

  build     here: the programs for sm_90a, as self-contained files in build/gpu-programs (needs nvcc 13; no GPU).
            SET: TERSEKV_CUDA_SET, default ci
  check     there: every codec against the CPU's bytes and double precision, random shapes and features, poisoned
            outputs, graph capture and replay, two streams
  sanitize  there: compute-sanitizer memcheck and racecheck on small cases
  bench     there: checks, then one table against cuDNN and FlashAttention-2 in bf16, in one run, then prefill over
            packed history beside dense bf16

What goes there: scripts/ and build/gpu-programs. GPU_PROGRAMS names another folder for the latter; results are
written to OUT (default: build/gpu-results).
HELP
}

programs=${GPU_PROGRAMS:-build/gpu-programs}
out=${OUT:-build/gpu-results}

build() {
  local cuda=${CUDA_HOME:-/usr/local/cuda} launcher=()
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  [ -x "$cuda/bin/nvcc" ] || cuda=$(ls -d /usr/local/cuda-* | tail -1)
  cmake -G Ninja -S . -B build/cuda -DCMAKE_BUILD_TYPE=Release -DTERSEKV_CUDA=ON -DTERSEKV_LLAMA=OFF \
    -DTERSEKV_BUILD_BENCH=OFF -DTERSEKV_WERROR=ON -DTERSEKV_CUDA_SET="${1:-ci}" \
    -DCMAKE_CUDA_COMPILER="$cuda/bin/nvcc" "${launcher[@]}" >/dev/null
  cmake --build build/cuda --target tersekv_gpu_check tersekv_gpu_bench tersekv_cuda_shared
  mkdir -p "$programs"
  strip -o "$programs/tersekv_gpu_check" build/cuda/tests/cuda/tersekv_gpu_check
  strip -o "$programs/tersekv_gpu_bench" build/cuda/tests/cuda/tersekv_gpu_bench
  strip -o "$programs/libtersekv_cuda_shared.so" build/cuda/src/cuda/libtersekv_cuda_shared.so
  ls -l "$programs"
}

present() {
  local name
  for name in tersekv_gpu_check tersekv_gpu_bench libtersekv_cuda_shared.so; do
    [ -f "$programs/$name" ] || { echo "$programs/$name is not there: scripts/gpu_check.sh build, then bring it" >&2; exit 1; }
    chmod +x "$programs/$name"
  done
  mkdir -p "$out"
}

case ${1:-} in
  build) build "${2:-}" ;;
  check)
    present
    "$programs/tersekv_gpu_check" | tee "$out/check.log"
    ;;
  sanitize)
    present
    compute-sanitizer --tool memcheck --error-exitcode 1 "$programs/tersekv_gpu_check" --small | tee "$out/memcheck.log"
    compute-sanitizer --tool racecheck --error-exitcode 1 "$programs/tersekv_gpu_check" --small | tee "$out/racecheck.log"
    ;;
  bench)
    present
    "$programs/tersekv_gpu_check" --small
    python3 scripts/gpu_bench.py --programs "$programs" --out "$out" "${@:2}"
    python3 scripts/gpu_prefill_bench.py --library "$programs/libtersekv_cuda_shared.so" --out "$out" "${@:2}"
    ;;
  -h | --help) usage ;;
  *) usage >&2; exit 2 ;;
esac

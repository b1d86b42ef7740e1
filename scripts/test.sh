#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything and runs all tests; the last line is `N passed, N failed, N skipped`. See --help.
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

RESULTS=() # JUnit files, one a run
TSAN_TESTS='Thread|Worker|Determin|Concurren|Parallel' # names of tests

usage() {
  cat <<'HELP'
usage: scripts/test.sh [--release] [--asan] [--tsan]

  --release  the optimised build and every test
  --asan     core unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
  --tsan     tests of threads and determinism under ThreadSanitizer

Without options: --release. Installs packages, builds llama.cpp and fetches the demo model, torch and transformers when
they are missing.
The last line is the sum of all runs; the exit code is not 0 when a test failed.
HELP
}

# Folders of tests/ that have a C++ test program and do without llama.cpp (it is not built with sanitizers).
core_folders() {
  local folder
  for folder in "$ROOT"/tests/*/; do
    folder=$(basename "$folder")
    [ "$folder" != hosts ] && [ "$folder" != cli ] && compgen -G "$ROOT/tests/$folder/*_test.cc" >/dev/null && echo "$folder"
  done
  return 0
}

build() { # PRESET [TARGET...]
  local preset=$1 log=$ROOT/build/$1.log
  shift
  mkdir -p "$ROOT/build"
  cd "$ROOT"
  cmake --preset "$preset" -DCMAKE_PREFIX_PATH="$(llama_prefix)" -DTERSEKV_WERROR="${TERSEKV_WERROR:-OFF}" \
    "-DTERSEKV_PYTHON=$([ "$preset" = release ] && echo ON || echo OFF)" "-DPython_EXECUTABLE=$(python_venv)/bin/python" >"$log" 2>&1 ||
    { cat "$log" >&2; die "the preset $preset does not configure"; }
  cmake --build --preset "$preset" --parallel "$JOBS" ${1:+--target "$@"} 2>&1 | tee "$log" |
    awk '/^\[/ { if (++n % 20 == 0) { print "    " $1; fflush() } }' >&2 ||
    {
      grep -A20 -m3 -E 'FAILED|error:' "$log" >&2 || tail -40 "$log" >&2
      die "the preset $preset does not build: see $log"
    }
}

# Shows what did not pass, and every 25th that did. A failing test ends nothing here: the summary counts it.
run_ctest() { # PRESET [CTEST ARGUMENT...]
  local preset=$1 junit=$ROOT/build/$1.junit.xml
  shift
  rm -f "$junit"
  RESULTS+=("$junit")
  ctest --test-dir "$ROOT/build/$preset" --output-on-failure --no-tests=error -j 2 --output-junit "$junit" "$@" 2>&1 |
    awk '/^ +Start +[0-9]+:/ { next } / Passed +[0-9.]+ sec/ { if (++n % 25) next } { print; fflush() }' >&2 || true
  [ -e "$junit" ] || die "ctest wrote no results for $preset"
}

release_tests() {
  step "Python packages of the tests" make_venv
  step "clients of the tests" make_clients_venv
  step "torch and transformers" make_python_venv
  step "build release" build release
  step "tests release" run_ctest release
}

asan_tests() {
  local folders
  mapfile -t folders < <(core_folders)
  step "build asan-ubsan" build asan-ubsan "${folders[@]/%/_tests}"
  step "tests asan-ubsan" run_ctest asan-ubsan -R "^($(IFS='|'; echo "${folders[*]}"))\."
}

tsan_tests() {
  local folders=(base cache attention cpu api) present=() folder
  for folder in $(core_folders); do
    [[ " ${folders[*]} " == *" $folder "* ]] && present+=("${folder}_tests")
  done
  step "build tsan" build tsan "${present[@]}"
  step "tests tsan" run_ctest tsan -R "$TSAN_TESTS"
}

main() {
  local runs=() option
  for option in "$@"; do
    case $option in
      --release | --asan | --tsan) runs+=("${option#--}") ;;
      -h | --help) usage; exit ;;
      *) usage >&2; die "unknown option '$option'" ;;
    esac
  done
  ((${#runs[@]})) || runs=(release)
  # GCC's ThreadSanitizer fails on the address layout of newer kernels unless it is fixed.
  local fixed=(setarch "$(uname -m)" -R)
  if [[ " ${runs[*]} " == *" tsan "* && -z ${TERSEKV_FIXED_LAYOUT-} ]] && "${fixed[@]}" true 2>/dev/null; then
    TERSEKV_FIXED_LAYOUT=1 exec "${fixed[@]}" bash "$ROOT/scripts/test.sh" "$@"
  fi

  step "packages" install_apt "${APT_PACKAGES[@]}"
  step "llama.cpp" build_llama
  step "demo model" fetch_model
  for option in "${runs[@]}"; do "${option}_tests"; done
  say "all runs: $SECONDS s"
  python3 "$ROOT/scripts/junit_summary.py" "${RESULTS[@]}"
}

main "$@"

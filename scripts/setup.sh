#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that a fresh Debian 12 or 13 needs: packages, llama.cpp, the demo model, and TerseKV in build/release (all
# of it, or the targets that are named). Safe to run again; what is there already is kept.
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

build_tersekv() { # [TARGET...]
  local build=$ROOT/build prefix
  prefix=$(llama_prefix)
  mkdir -p "$build"
  cd "$ROOT"
  cmake --preset release -DCMAKE_PREFIX_PATH="$prefix" >"$build/configure.log" 2>&1 ||
    { cat "$build/configure.log" >&2; die "TerseKV does not configure: see above"; }
  cmake --build --preset release --parallel "$JOBS" ${1:+--target "$@"} 2>&1 | tee "$build/build.log" |
    awk '/^\[/ { if (++n % 10 == 0) { print "    " $1; fflush() } }' >&2 ||
    { tail -40 "$build/build.log" >&2; die "TerseKV does not build: see above and $build/build.log"; }
}

case ${1-} in
  -h | --help)
    echo "usage: scripts/setup.sh [TARGET...]    installs packages, builds llama.cpp, fetches the model, builds TerseKV"
    exit
    ;;
  -*) die "unknown option '$1': see scripts/setup.sh --help" ;;
esac
step "packages" install_apt "${APT_PACKAGES[@]}"
step "llama.cpp" build_llama
step "demo model" fetch_model
step "TerseKV" build_tersekv "$@"
say "ready: build/release/cli/tersekv run -m '$DEMO_MODEL' -p 'Hello'"

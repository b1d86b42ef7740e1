#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes the core with clang's libFuzzer under AddressSanitizer and UndefinedBehaviorSanitizer. See --help.
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TARGETS=(codec spec profile cache session)

usage() {
  cat <<'HELP'
usage: scripts/fuzz.sh [--seconds N] [TARGET...]

  --seconds N   each target runs this long, default 60
  TARGET        codec, spec, profile, cache, session; default: all, one after another

Installs clang, builds build/fuzz and starts from tests/fuzz/corpus/TARGET. New inputs go to build/fuzz/found/TARGET,
an input that breaks something to build/fuzz/TARGET-crash-...: put it into the corpus with the mend. The exit code is
not 0 when something broke.
HELP
}

build() {
  local log=$ROOT/build/fuzz.log
  mkdir -p "$ROOT/build"
  cd "$ROOT"
  cmake --preset fuzz >"$log" 2>&1 || { cat "$log" >&2; die "the preset fuzz does not configure"; }
  cmake --build --preset fuzz --parallel "$JOBS" --target "${@/%/_fuzz}" >"$log" 2>&1 ||
    { tail -40 "$log" >&2; die "the preset fuzz does not build: see $log"; }
}

fuzz() { # TARGET SECONDS
  local found=$ROOT/build/fuzz/found/$1
  mkdir -p "$found"
  "$ROOT/build/fuzz/tests/fuzz/$1_fuzz" -max_total_time="$2" -timeout=60 -rss_limit_mb=4096 -max_len=4096 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="$ROOT/build/fuzz/$1-" "$found" "$ROOT/tests/fuzz/corpus/$1"
}

seconds=60 targets=()
while (($#)); do
  case $1 in
    --seconds) [[ ${2-} =~ ^[1-9][0-9]*$ ]] || die "--seconds takes a whole number, 1 or more"; seconds=$2; shift ;;
    -h | --help) usage; exit ;;
    *) [[ " ${TARGETS[*]} " == *" $1 "* ]] || { usage >&2; die "unknown target or option '$1'"; }; targets+=("$1") ;;
  esac
  shift
done
((${#targets[@]})) || targets=("${TARGETS[@]}")
step "packages" install_apt "${APT_PACKAGES[@]}" clang libclang-rt-dev
step "build fuzz" build "${targets[@]}"
broken=()
for target in "${targets[@]}"; do
  say "fuzz $target for $seconds s"
  fuzz "$target" "$seconds" || broken+=("$target")
done
((${#broken[@]} == 0)) || die "these targets broke: ${broken[*]}"

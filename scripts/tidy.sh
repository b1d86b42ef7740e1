#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over whole folders: scripts/tidy.sh [FOLDER...], by default src hosts cli. Needs a configured
# build/release (scripts/setup.sh), or TERSEKV_BUILD_DIR, and Debian's clang-tidy. Ends with non-zero on any finding.
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

BUILD=${TERSEKV_BUILD_DIR:-$ROOT/build/release}
(($#)) || set -- src hosts cli
[ -e "$BUILD/compile_commands.json" ] || die "$BUILD/compile_commands.json is not there: run scripts/setup.sh first"
install_apt clang-tidy

cd "$ROOT"
mapfile -t files < <(git ls-files -co --exclude-standard -- "$@" | grep '\.cc$')
((${#files[@]})) || die "no .cc file in: $*"
say "clang-tidy: ${#files[@]} files"
# GCC's warning options and its view of the processor are unknown to clang.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$JOBS" clang-tidy --quiet -p "$BUILD" \
  --extra-arg=-Wno-unknown-warning-option 2>&1 | sed '/^[0-9]* warnings\{0,1\} generated\.$/d'
say "clang-tidy: nothing found"

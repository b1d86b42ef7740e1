#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Models with random weights for `tersekv bench e2e`: the shapes of docs/perf/cpu.md. Prints their paths.
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1-} in
  -h | --help)
    echo "usage: scripts/bench_models.sh    writes the 1B shape (head dim 64, Q4_0) and the head-dim-128 shape"
    exit
    ;;
  '') ;;
  *) die "unknown argument '$1': see scripts/bench_models.sh --help" ;;
esac
step "Python packages" make_venv
model() { # NAME ARGUMENT...
  local path=$MODEL_DIR/bench/$1.gguf
  shift
  mkdir -p "$MODEL_DIR/bench"
  [ -e "$path" ] || step "$path" "$VENV/bin/python" -B "$ROOT/tests/tools/make_model.py" random --out "$path" "$@" >&2
  echo "$path"
}
model 1b-d64-q4_0 --arch llama --layers 16 --heads 32 --kv-heads 8 --head-dim 64 --embd 2048 --ffn 8192 \
  --vocab 128256 --ctx 65536 --type q4_0
model d128-q4_0 --arch llama --layers 16 --heads 16 --kv-heads 8 --head-dim 128 --embd 2048 --ffn 6144 \
  --vocab 128256 --ctx 65536 --type q4_0

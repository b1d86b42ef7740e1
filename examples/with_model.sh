#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# with_model.sh PROGRAM: runs it on the demo model, or on TERSEKV_TEST_MODEL; 77 (skipped) when there is none.
cache=${TERSEKV_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tersekv}
model=${TERSEKV_TEST_MODEL:-$cache/models/SmolLM2-135M-Instruct.Q4_1.gguf}
if [ ! -e "$model" ]; then
  echo "skipped: no model at $model: scripts/setup.sh fetches it"
  exit 77
fi
exec "$1" "$model"

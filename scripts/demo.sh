#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job, start to end: a long text and a question about it, answered on an f16 cache and on the packed default;
# then what the packed cache costs and saves, beside llama.cpp's own cache. Results stay in the cache folder (demo/).
# --with-gemma: the table also of Gemma 3 270M (sliding windows, head_dim 256), whose terms are shown and asked for first.
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TERSEKV=$ROOT/build/release/cli/tersekv
DEMO=$CACHE/demo
QUESTION='Question: Which hexadecimal word fills freshly allocated memory under IBM environments?'
FIRST_ENTRY=':dead code:' # of the Jargon File, public domain
TEXT_BYTES=8600           # whole entries up to this: about 2,150 tokens

# The file of Debian's jargon-text; where documentation is kept out of the system (containers), from the package itself.
jargon_file() {
  local file=usr/share/doc/jargon-text/jargon.txt.gz
  [ -e "/$file" ] && { echo "/$file"; return; }
  if [ ! -e "$DEMO/jargon/$file" ]; then
    (cd "$DEMO" && apt-get download -qq jargon-text >&2) || die "the package jargon-text cannot be downloaded"
    dpkg-deb -x "$DEMO"/jargon-text_*.deb "$DEMO/jargon"
  fi
  echo "$DEMO/jargon/$file"
}

excerpt() {
  local file
  file=$(jargon_file)
  # awk may stop before the end of the file, hence no pipefail for zcat.
  { zcat "$file" || true; } 2>/dev/null | LC_ALL=C awk -v first="   $FIRST_ENTRY" -v most="$TEXT_BYTES" '
    /^   :[^:]+:/ {
      if (index($0, first) == 1) on = 1
      else if (on && bytes + length(entry) > most) exit
      if (on) { printf "%s", entry; bytes += length(entry); entry = "" }
    }
    on { sub(/^   /, ""); entry = entry $0 "\n" }'
}

table() { # MODEL CONTEXT NAME
  printf '\n'
  "$TERSEKV" eval -m "$1" --text "$DEMO/text.txt" --kv k4v4,stock-f16 --ctx "$2" --tokens $(($2 / 2)) \
    --json "$DEMO/$3.json" >"$DEMO/$3.txt"
  printf '\n'
  python3 "$ROOT/scripts/demo_table.py" "$DEMO/$3.json"
}

answer() { # SPEC
  printf '\n--- %s ---\n' "$1"
  "$TERSEKV" run -m "$DEMO_MODEL" --file "$DEMO/text.txt" -p "$QUESTION" --kv "$1" -n 64 --temp 0 --ctx 4096 \
    --json "$DEMO/run-$1.json"
}

gemma=
terms=()
for argument in "$@"; do
  case $argument in
    -h | --help)
      echo "usage: scripts/demo.sh [--with-gemma [--accept-gemma-terms]]"
      exit
      ;;
    --with-gemma) gemma=yes ;;
    --accept-gemma-terms) terms=("$argument") ;;
    *) die "unknown argument '$argument': see scripts/demo.sh --help" ;;
  esac
done
[ -n "$gemma" ] || [ ${#terms[@]} = 0 ] || die "--accept-gemma-terms goes with --with-gemma"

"$ROOT/scripts/setup.sh" tersekv_cli
mkdir -p "$DEMO"
if [ -n "$gemma" ]; then "$ROOT/scripts/gemma.sh" "${terms[@]}" >"$DEMO/gemma.path"; fi
excerpt >"$DEMO/text.txt"
[ "$(wc -c <"$DEMO/text.txt")" -gt 7000 ] || die "the excerpt of the Jargon File is short: look at $DEMO/text.txt"

printf '\nText: %s bytes of the Jargon File, entries %s to %s\n%s\n' "$(wc -c <"$DEMO/text.txt")" \
  "$(grep -m1 -o '^:[^:]*:' "$DEMO/text.txt")" "$(grep -o '^:[^:]*:' "$DEMO/text.txt" | tail -1)" "$QUESTION"
answer f16
answer k4v4
table "$DEMO_MODEL" 2048 eval
if [ -n "$gemma" ]; then
  printf '\nGemma 3 270M, on the same text:\n'
  table "$(<"$DEMO/gemma.path")" 1536 eval-gemma
fi
say "demo: done in $SECONDS s"

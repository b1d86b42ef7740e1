// SPDX-License-Identifier: Apache-2.0
// llama_memory_*: the program keeps the real handle, whose cache is empty between calls.
#include "hosts/llama/preload/interpose.h"

namespace tersekv::llama::preload {

TERSEKV_INTERPOSED void llama_memory_clear(llama_memory_t memory, bool data) {
  if (Context* ours = Ours(memory)) return On(__func__, ours, [&] { ours->Clear(data); });
  TERSEKV_REAL(llama_memory_clear)(memory, data);
}

TERSEKV_INTERPOSED bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id seq, llama_pos begin, llama_pos end) {
  if (Context* ours = Ours(memory)) {
    return On(__func__, ours, false, [&] { return ours->history().Remove(seq, begin, end); });
  }
  return TERSEKV_REAL(llama_memory_seq_rm)(memory, seq, begin, end);
}

TERSEKV_INTERPOSED void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to, llama_pos begin,
                                            llama_pos end) {
  if (Context* ours = Ours(memory)) {
    return On(__func__, ours, [&] { ours->history().Copy(from, to, begin, end); });
  }
  TERSEKV_REAL(llama_memory_seq_cp)(memory, from, to, begin, end);
}

TERSEKV_INTERPOSED void llama_memory_seq_keep(llama_memory_t memory, llama_seq_id seq) {
  if (Context* ours = Ours(memory)) return On(__func__, ours, [&] { ours->history().Keep(seq); });
  TERSEKV_REAL(llama_memory_seq_keep)(memory, seq);
}

TERSEKV_INTERPOSED void llama_memory_seq_add(llama_memory_t memory, llama_seq_id seq, llama_pos begin, llama_pos end,
                                             llama_pos delta) {
  if (Context* ours = Ours(memory)) {
    if (delta == 0) return;
    return On(__func__, ours, [&] {
      if (!ours->can_shift()) {
        return ours->history().Spoil(seq, Unsupported("its positions were to be shifted, see llama_memory_can_shift"));
      }
      ours->history().Shift(seq, begin, end, delta, ours->rotator().rotations());
    });
  }
  TERSEKV_REAL(llama_memory_seq_add)(memory, seq, begin, end, delta);
}

TERSEKV_INTERPOSED void llama_memory_seq_div(llama_memory_t memory, llama_seq_id seq, llama_pos begin, llama_pos end,
                                             int divisor) {
  if (Context* ours = Ours(memory)) {
    if (divisor == 1) return;
    return On(__func__, ours,
              [&] { ours->history().Spoil(seq, Unsupported("its positions were to be divided (self-extend)")); });
  }
  TERSEKV_REAL(llama_memory_seq_div)(memory, seq, begin, end, divisor);
}

TERSEKV_INTERPOSED llama_pos llama_memory_seq_pos_min(llama_memory_t memory, llama_seq_id seq) {
  if (Context* ours = Ours(memory)) {
    return On(__func__, ours, llama_pos{-1}, [&] { return ours->history().First(seq); });
  }
  return TERSEKV_REAL(llama_memory_seq_pos_min)(memory, seq);
}

TERSEKV_INTERPOSED llama_pos llama_memory_seq_pos_max(llama_memory_t memory, llama_seq_id seq) {
  if (Context* ours = Ours(memory)) {
    return On(__func__, ours, llama_pos{-1}, [&] { return ours->history().Last(seq); });
  }
  return TERSEKV_REAL(llama_memory_seq_pos_max)(memory, seq);
}

TERSEKV_INTERPOSED bool llama_memory_can_shift(llama_memory_t memory) {
  if (const Context* ours = Ours(memory)) return Guard(__func__, false, [&] { return ours->can_shift(); });
  return TERSEKV_REAL(llama_memory_can_shift)(memory);
}

}  // namespace tersekv::llama::preload

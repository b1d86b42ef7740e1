// SPDX-License-Identifier: Apache-2.0
// Batches, of both kinds that llama.h has, and running them.
#include <algorithm>
#include <map>

#include "hosts/llama/preload/interpose.h"

namespace tersekv::llama::preload {
namespace {

constexpr int32_t kFailed = -3;  // of llama_decode: something inside

// A sequence that is named twice counts once.
void AddSequence(int32_t seq, BatchToken* token) {
  if (std::find(token->seqs.begin(), token->seqs.end(), seq) == token->seqs.end()) token->seqs.push_back(seq);
}

int32_t DecodeOurs(Context* ours, llama_batch batch) {
  const auto n = static_cast<size_t>(batch.n_tokens);
  std::vector<BatchToken> tokens(n);
  std::vector<llama_pos> positions(n);
  std::map<int32_t, int32_t> next;  // where llama.cpp would look into its own cache
  for (size_t i = 0; i < n; ++i) {
    BatchToken& t = tokens[i];
    const int32_t seqs = batch.seq_id == nullptr ? 1 : batch.n_seq_id != nullptr ? batch.n_seq_id[i] : 1;
    for (int32_t s = 0; s < seqs; ++s) AddSequence(batch.seq_id != nullptr ? batch.seq_id[i][s] : 0, &t);
    if (batch.pos != nullptr) {
      t.pos = batch.pos[i];
    } else if (!t.seqs.empty()) {
      const auto [it, fresh] = next.emplace(t.seqs[0], 0);
      if (fresh) it->second = ours->history().Last(t.seqs[0]) + 1;
      t.pos = it->second++;
    }
    positions[i] = t.pos;
  }
  if (batch.pos == nullptr) batch.pos = positions.data();
  return ours->Decode(tokens, [&] { return TERSEKV_REAL(llama_decode)(ours->handle(), batch); });
}

RecordedBatch* Recorded(const llama_batch_ext* batch) { return Registry::Get().FindBatch(batch); }

// After the real function has added token `index`.
int32_t RecordToken(const llama_batch_ext* batch, int32_t index, llama_seq_id seq) {
  if (index < 0) return index;
  RecordedBatch* recorded = Recorded(batch);
  if (recorded == nullptr) return index;
  return Guard(
      "llama_batch_ext_add", int32_t{-1},
      [&] {
        recorded->tokens.resize(static_cast<size_t>(index) + 1);
        recorded->tokens[static_cast<size_t>(index)] = {0, {seq}};
        return index;
      },
      [recorded] { recorded->failed = true; });
}

BatchToken* RecordedToken(const llama_batch_ext* batch, int32_t index) {
  RecordedBatch* recorded = Recorded(batch);
  if (recorded == nullptr || index < 0 || static_cast<size_t>(index) >= recorded->tokens.size()) return nullptr;
  return &recorded->tokens[static_cast<size_t>(index)];
}

}  // namespace

TERSEKV_INTERPOSED int32_t llama_decode(llama_context* context, llama_batch batch) {
  Context* ours = Ours(context);
  if (ours == nullptr || batch.n_tokens <= 0) return TERSEKV_REAL(llama_decode)(context, batch);
  return On(__func__, ours, kFailed, [&] { return DecodeOurs(ours, batch); });
}

TERSEKV_INTERPOSED int32_t llama_process(llama_context* context, llama_process_type type, llama_batch_ext* batch) {
  Context* ours = Ours(context);
  const RecordedBatch* recorded = Recorded(batch);
  if (ours != nullptr && recorded != nullptr && recorded->failed) return kFailed;
  if (ours == nullptr || recorded == nullptr || recorded->tokens.empty() || type != LLAMA_PROCESS_TYPE_DECODE) {
    return TERSEKV_REAL(llama_process)(context, type, batch);
  }
  return On(__func__, ours, kFailed, [&] {
    return ours->Decode(recorded->tokens, [&] { return TERSEKV_REAL(llama_process)(context, type, batch); });
  });
}

TERSEKV_INTERPOSED llama_batch_ext* llama_batch_ext_init(llama_context* context) {
  llama_batch_ext* batch = TERSEKV_REAL(llama_batch_ext_init)(context);
  if (batch == nullptr || Ours(context) == nullptr) return batch;
  const bool known = Guard(__func__, false, [&] { return Registry::Get().AddBatch(batch), true; });
  if (known) return batch;
  TERSEKV_REAL(llama_batch_ext_free)(batch);
  return nullptr;
}

TERSEKV_INTERPOSED void llama_batch_ext_free(llama_batch_ext* batch) {
  Registry::Get().RemoveBatch(batch);
  TERSEKV_REAL(llama_batch_ext_free)(batch);
}

TERSEKV_INTERPOSED void llama_batch_ext_clear(llama_batch_ext* batch) {
  if (RecordedBatch* recorded = Recorded(batch)) *recorded = {};
  TERSEKV_REAL(llama_batch_ext_clear)(batch);
}

TERSEKV_INTERPOSED int32_t llama_batch_ext_add(llama_batch_ext* batch, llama_seq_id seq) {
  return RecordToken(batch, TERSEKV_REAL(llama_batch_ext_add)(batch, seq), seq);
}

TERSEKV_INTERPOSED int32_t llama_batch_ext_add_token(llama_batch_ext* batch, llama_seq_id seq, llama_token id) {
  return RecordToken(batch, TERSEKV_REAL(llama_batch_ext_add_token)(batch, seq, id), seq);
}

TERSEKV_INTERPOSED int32_t llama_batch_ext_add_embd(llama_batch_ext* batch, llama_seq_id seq, llama_embd embd) {
  return RecordToken(batch, TERSEKV_REAL(llama_batch_ext_add_embd)(batch, seq, embd), seq);
}

TERSEKV_INTERPOSED bool llama_batch_ext_add_seq(llama_batch_ext* batch, int32_t index, llama_seq_id seq) {
  if (!TERSEKV_REAL(llama_batch_ext_add_seq)(batch, index, seq)) return false;
  BatchToken* token = RecordedToken(batch, index);
  if (token == nullptr) return true;
  return Guard(
      __func__, false, [&] { return AddSequence(seq, token), true; }, [batch] { Recorded(batch)->failed = true; });
}

TERSEKV_INTERPOSED bool llama_batch_ext_set_pos(llama_batch_ext* batch, int32_t index, const llama_pos* pos) {
  if (!TERSEKV_REAL(llama_batch_ext_set_pos)(batch, index, pos)) return false;
  if (BatchToken* token = RecordedToken(batch, index)) token->pos = *pos;
  return true;
}

}  // namespace tersekv::llama::preload

// SPDX-License-Identifier: Apache-2.0
// What llama_state_* gives and takes: packed sequences as session bytes (tersekv/session.h) with a frame around them.
// Layouts: docs/serving.md, "Saved states".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hosts/llama/preload/history.h"
#include "hosts/llama/preload/sizes.h"
#include "tersekv/profile.h"

namespace tersekv::llama::preload {

class StateCodec {
 public:
  static constexpr int32_t kAll = -1;  // in place of a sequence: all of them

  // sizes: what a loaded state is held to.
  StateCodec(History* history, ModelIdentity model, const Sizes& sizes)
      : history_(history), model_(std::move(model)), sizes_(sizes) {}

  // The bytes of one sequence or of all. partial: what llama.cpp calls a checkpoint, all that the sequence loses while
  // it grows, which its end can be cut back to later: pages of windowed layers and raw rows; nothing without windows.
  // Valid until the next call.
  Result<std::string_view> Save(int32_t seq, bool partial);
  // Into one sequence, or all of them; what is there is replaced, but a partial state takes pages of other layers from
  // it and is refused where the sequence does not begin with the tokens that the state was made of. The target is empty
  // after a failure, and only if something of it had to be removed first. Returns the bytes read. kInvalidArgument:
  // more tokens than a sequence has, or a sequence that the context has not, or has twice.
  Result<size_t> Load(std::string_view bytes, int32_t seq);

  // A file: the program's tokens and a state. Written whole or not at all. Returns its bytes.
  Result<size_t> SaveFile(const std::string& path, int32_t seq, std::span<const int32_t> tokens);
  struct File {
    std::vector<int32_t> tokens;
    std::string bytes;  // all of it
    size_t state_at = 0;
    std::string_view state() const { return std::string_view(bytes).substr(state_at); }
  };
  // kNotFound, kInvalidArgument (a folder), kDataLoss (cut off, damaged, not ours), kUnsupported (another version).
  static Result<File> ReadFile(const std::string& path);

 private:
  Result<std::string> Part(int32_t id, bool partial) const;

  History* history_;
  ModelIdentity model_;
  const Sizes& sizes_;
  std::string saved_;
  int32_t saved_seq_ = 0;
  bool saved_partial_ = false;
  uint64_t saved_at_ = 0;  // History::changes() then; 0: nothing is saved
};

}  // namespace tersekv::llama::preload

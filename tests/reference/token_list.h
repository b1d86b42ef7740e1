// SPDX-License-Identifier: Apache-2.0
// A sequence as a plain list of tokens, each with its rows: what operations on sequences must look like from outside
// (docs/decisions/0007-sequence-operations.md). For specs that pack token by token and measure nothing, or are raw.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/codec.h"
#include "tests/reference/checker.h"
#include "tests/reference/step_driver.h"

namespace tersekv::reference {

class TokenLists {
 public:
  explicit TokenLists(const Model& model);

  void Append(const Token& token);
  void Truncate(int32_t seq, int64_t tokens);
  void RemoveRange(int32_t seq, int64_t begin, int64_t end);
  void Copy(int32_t from, int32_t to, int64_t begin, int64_t end);
  void Shift(int32_t seq, int64_t begin, int64_t end, int64_t delta, const KeyRotation& rotation);
  void Remove(int32_t seq) { lists_.erase(seq); }
  void Keep(int32_t seq);

  std::vector<int32_t> Positions(int32_t seq) const;
  int64_t Packed(int32_t seq) const;
  std::vector<int32_t> Sequences() const;
  // Appends the tokens of a step one by one and holds the results of queries i with i % stride == 0 and the last
  // against the lists.
  Errors AppendAndCompare(const std::vector<Token>& tokens, const StepResult& result, size_t stride = 7);

 private:
  enum class Form { kSink, kRaw, kPacked };
  struct Item {
    int32_t position = 0;
    Form form = Form::kRaw;
    std::vector<std::vector<float>> rows[2];  // by side, layer: as they are read
  };
  using List = std::vector<Item>;

  void Settle(List* list);    // what left the window is packed
  void Unpacked(List* list);  // nothing is packed: the first tokens are the sinks
  std::vector<float> Stored(int layer, int side, const std::vector<float>& row, bool packed) const;
  Errors Compare(const Token& token, const StepResult& result, size_t row) const;

  const Model& model_;
  std::vector<std::shared_ptr<const VectorCodec>> codecs_[2], half_[2];  // by side; layer and KV head
  std::map<int32_t, List> lists_;
};

}  // namespace tersekv::reference

// SPDX-License-Identifier: Apache-2.0
// Holds what a KvCache answered against attention_reference.h.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "tests/reference/attention_reference.h"
#include "tests/reference/step_driver.h"

namespace tersekv::reference {

struct Errors {
  double out = 0;  // largest |o - reference| / max |reference| of a (query, head)
  double lse = 0;  // largest |lse - reference| / max(1, |reference|)
  int64_t packed_seen = 0, raw_seen = 0;
};

// The same sequences in double precision.
class Checker {
 public:
  explicit Checker(const Model& model) : model_(model) {}
  void Append(const std::vector<Token>& tokens);
  // Queries i with i % stride == 0 and the last; those of `tokens`, which were appended last.
  Errors Compare(const std::vector<Token>& tokens, const StepResult& result, size_t stride = 1);
  void Truncate(int32_t seq, int64_t tokens);
  void RemovePacked(int32_t seq, int64_t begin, int64_t end) {
    for (Sequence& layer : sequences_.at(seq)) layer.RemovePacked(begin, end);
  }
  void Fork(int32_t from, int32_t to) { sequences_[to] = sequences_.at(from); }
  void Remove(int32_t seq) { sequences_.erase(seq); }

 private:
  const Model& model_;
  std::map<int32_t, std::vector<Sequence>> sequences_;  // [layer]
};

}  // namespace tersekv::reference

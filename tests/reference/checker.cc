// SPDX-License-Identifier: Apache-2.0
#include "tests/reference/checker.h"

#include <algorithm>
#include <cmath>

namespace tersekv::reference {

void Checker::Append(const std::vector<Token>& tokens) {
  for (const Token& token : tokens) {
    std::vector<Sequence>& layers = sequences_[token.seq];
    for (size_t l = 0; l < model_.config.layers.size(); ++l) {
      if (layers.size() <= l) layers.emplace_back(model_.config, static_cast<int>(l));
      layers[l].Append(token.pos, model_.K(static_cast<int>(l), token.content).data(),
                       model_.V(static_cast<int>(l), token.content).data());
    }
  }
}

Errors Checker::Compare(const std::vector<Token>& tokens, const StepResult& result, size_t stride) {
  Errors errors;
  std::map<int32_t, int64_t> left;  // tokens of the sequence after this one
  for (size_t i = tokens.size(); i-- > 0;) {
    const int64_t after = left[tokens[i].seq]++;
    if (i % stride != 0 && i + 1 != tokens.size()) continue;
    for (size_t l = 0; l < result.size(); ++l) {
      const LayerShape& shape = model_.config.layers[l];
      Sequence& sequence = sequences_.at(tokens[i].seq)[l];
      const int64_t order = sequence.length() - 1 - after;
      for (int64_t j = 0; j <= order; ++j) ++(sequence.IsPacked(j, order) ? errors.packed_seen : errors.raw_seen);
      const std::vector<float> q = model_.Q(static_cast<int>(l), tokens[i].content);
      for (int h = 0; h < shape.heads; ++h) {
        const Answer answer =
            sequence.Attend(order, h, q.data() + h * shape.head_dim_k, model_.Params(static_cast<int>(l)));
        const size_t row = i * static_cast<size_t>(shape.heads) + static_cast<size_t>(h);
        double worst = 0, largest = 0;
        for (size_t c = 0; c < answer.out.size(); ++c) {
          worst = std::max(worst,
                           std::fabs(static_cast<double>(result[l].out[row * answer.out.size() + c]) - answer.out[c]));
          largest = std::max(largest, std::fabs(answer.out[c]));
        }
        errors.out = std::max(errors.out, worst / largest);
        errors.lse = std::max(errors.lse, std::fabs(static_cast<double>(result[l].lse[row]) - answer.lse) /
                                              std::max(1.0, std::fabs(answer.lse)));
      }
    }
  }
  return errors;
}

void Checker::Truncate(int32_t seq, int64_t tokens) {
  if (tokens == 0) return Remove(seq);
  for (Sequence& layer : sequences_.at(seq)) layer.Truncate(tokens);
}

}  // namespace tersekv::reference

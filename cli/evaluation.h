// SPDX-License-Identifier: Apache-2.0
// The measuring part of `tersekv eval`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cli/eval.h"
#include "cli/eval_metrics.h"
#include "tersekv/llama.h"

namespace tersekv::cli {

constexpr int kDecodeSteps = 16;  // timed, after the last context; a session's ctx has room for them

struct Candidate {
  KvChoice choice;
  std::unique_ptr<llama::Session> session;
  std::vector<TokenScore> scores;
  double prefill_seconds = 0, decode_tps = 0;
  CacheUsage usage;  // at the end of the last context
};

// All caches take each batch one after the other and are scored at once against the logits of the first, which stay in
// its session: nothing is stored, and every cache sees the same machine.
class Evaluation {
 public:
  Evaluation(const EvalPlan& plan, std::vector<Candidate>* candidates, int ubatch, int threads)
      : plan_(plan), candidates_(*candidates), ubatch_(ubatch), threads_(threads) {}

  // Brings weights and code into memory, so that the first cache does not pay for the others.
  Status WarmUp();
  // progress(n): another n tokens went through one of the caches.
  Status RunContext(int c, const std::function<void(int64_t)>& progress);
  // Single tokens on the full context c, the last one that was run.
  Status TimeDecode(int c);

 private:
  // Positions [first, end) of context c, whose logits the candidate has now. An empty `reference` is filled.
  Status Score(int c, int64_t first, int64_t end, Candidate& candidate, std::vector<LogitRow>* reference);

  const EvalPlan& plan_;
  std::vector<Candidate>& candidates_;
  int ubatch_, threads_;
};

// Every cache keeps the logits of a batch; refuses what the machine has no memory for.
Status CheckMemory(int64_t caches, int64_t rows, int64_t vocab);
Status CheckMemoryFrom(double needed, double available, int64_t caches);

}  // namespace tersekv::cli

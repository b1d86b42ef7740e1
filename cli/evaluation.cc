// SPDX-License-Identifier: Apache-2.0
#include "cli/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "cli/progress.h"

namespace tersekv::cli {
namespace {

using Clock = std::chrono::steady_clock;
double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Status Named(const Candidate& candidate, const Status& status) {
  if (status.ok()) return status;
  return {status.code(), fmt::format("{}: {}", NameOf(candidate.choice, *candidate.session), status.message())};
}

}  // namespace

Status Evaluation::WarmUp() {
  const std::vector<int32_t> tokens = plan_.Context(0);
  std::vector<llama::BatchToken> batch;
  for (int32_t pos = 0; pos < std::min<int64_t>(plan_.length, 32); ++pos) {
    batch.push_back({tokens[static_cast<size_t>(pos)], pos, 0, false});
  }
  batch.back().logits = true;
  for (Candidate& candidate : candidates_) {
    if (Status status = candidate.session->Decode(batch); !status.ok()) return Named(candidate, status);
    candidate.session->Clear(0);
  }
  return {};
}

Status Evaluation::RunContext(int c, const std::function<void(int64_t)>& progress) {
  for (Candidate& candidate : candidates_) candidate.session->Clear(0);
  const std::vector<int32_t> tokens = plan_.Context(c);
  for (int64_t begin = 0; begin < plan_.length; begin += ubatch_) {
    const int64_t end = std::min(begin + ubatch_, plan_.length);
    std::vector<llama::BatchToken> batch;
    for (int64_t pos = begin; pos < end; ++pos) {
      batch.push_back({tokens[static_cast<size_t>(pos)], static_cast<int32_t>(pos), 0, pos >= plan_.first_scored});
    }
    const int64_t first = std::max(begin, plan_.first_scored);
    std::vector<LogitRow> reference;
    for (Candidate& candidate : candidates_) {
      const auto start = Clock::now();
      if (Status status = candidate.session->Decode(batch); !status.ok()) return Named(candidate, status);
      candidate.prefill_seconds += Since(start);
      if (Status status = Score(c, first, end, candidate, &reference); !status.ok()) return Named(candidate, status);
      progress(end - begin);
    }
  }
  for (Candidate& candidate : candidates_) candidate.usage = candidate.session->Usage();
  return {};
}

Status Evaluation::TimeDecode(int c) {
  const std::vector<int32_t> tokens = plan_.Continuation(c, kDecodeSteps);
  for (Candidate& candidate : candidates_) {
    const auto start = Clock::now();
    for (int i = 0; i < kDecodeSteps; ++i) {
      const llama::BatchToken token = {tokens[static_cast<size_t>(i)], static_cast<int32_t>(plan_.length + i), 0, true};
      if (Status status = candidate.session->Decode({&token, 1}); !status.ok()) return Named(candidate, status);
    }
    candidate.decode_tps = kDecodeSteps / Since(start);
  }
  return {};
}

Status Evaluation::Score(int c, int64_t first, int64_t end, Candidate& candidate, std::vector<LogitRow>* reference) {
  const auto rows = static_cast<size_t>(std::max<int64_t>(end - first, 0));
  const bool is_reference = reference->empty();
  const size_t before = candidate.scores.size();
  candidate.scores.resize(before + rows);
  std::vector<LogitRow> found(rows);
  for (size_t r = 0; r < rows; ++r) found[r].logits = candidate.session->Logits(static_cast<int>(r));
  ParallelFor(static_cast<int>(rows), threads_, [&](int i) {
    const auto r = static_cast<size_t>(i);
    LogitRow& row = found[r] = AnalyseRow(found[r].logits);
    if (!row.ok) return;
    const LogitRow& other = is_reference ? row : (*reference)[r];
    TokenScore& score = candidate.scores[before + r];
    score.kl = is_reference ? 0 : KlDivergence(other, row);
    score.agree = other.argmax == row.argmax;
    score.nll = NegLogLikelihood(row, plan_.Next(c, first + i));
  });
  for (size_t r = 0; r < rows; ++r) {
    if (found[r].ok) continue;
    return DataLoss(fmt::format(
        "logits of position {} in context {} are not finite: the model file may be damaged; `tersekv doctor -m MODEL` "
        "checks the host",
        first + static_cast<int64_t>(r), c + 1));
  }
  if (is_reference) *reference = std::move(found);
  return {};
}

Status CheckMemory(int64_t caches, int64_t rows, int64_t vocab) {
  std::ifstream file("/proc/meminfo");
  std::string key, rest;
  double kib = 0;
  while (file >> key >> kib && key != "MemAvailable:") std::getline(file, rest);
  if (key != "MemAvailable:") return {};
  return CheckMemoryFrom(4.0 * static_cast<double>(caches * rows * vocab), kib * 1024, caches);
}

Status CheckMemoryFrom(double needed, double available, int64_t caches) {
  if (needed <= 0.9 * available) return {};
  return OutOfBudget(
      fmt::format("the logits of {} caches need {}, {} of memory are free: evaluate fewer specs at a time or set a "
                  "smaller --ubatch",
                  caches, Size(needed), Size(available)));
}

}  // namespace tersekv::cli

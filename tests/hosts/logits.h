// SPDX-License-Identifier: Apache-2.0
// Runs a schedule of batches through a session and compares the logits of all its tokens with another session's.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tersekv/llama.h"

namespace tersekv::llama {

using Schedule = std::vector<std::vector<BatchToken>>;  // one Decode each

// Fixed pseudo-random tokens; the first three of a vocabulary are left out (special).
class TokenStream {
 public:
  explicit TokenStream(int vocab, uint32_t seed = 1) : vocab_(static_cast<uint32_t>(vocab)), state_(seed) {}
  int32_t Next() {
    state_ = state_ * 1664525u + 1013904223u;
    return static_cast<int32_t>(3 + (state_ >> 8) % (vocab_ - 3));
  }

 private:
  uint32_t vocab_, state_;
};

// Adds the tokens at `pos` and on to the schedule's last batch.
inline void Append(Schedule* schedule, TokenStream* tokens, int32_t seq, int32_t pos, int count) {
  for (int i = 0; i < count; ++i) schedule->back().push_back({tokens->Next(), pos + i, seq, true});
}

// One sequence: `prefill` tokens in batches of `batch`, then `decode` single tokens.
inline Schedule OneSequence(int vocab, int prefill, int batch, int decode) {
  Schedule schedule;
  TokenStream tokens(vocab);
  for (int pos = 0; pos < prefill; pos += batch) {
    schedule.emplace_back();
    Append(&schedule, &tokens, 0, pos, std::min(batch, prefill - pos));
  }
  for (int i = 0; i < decode; ++i) {
    schedule.emplace_back();
    Append(&schedule, &tokens, 0, prefill + i, 1);
  }
  return schedule;
}

// Two sequences of different lengths whose tokens interleave in one batch (runs of 5 and 3), then `joint` steps of a
// token each, then `alone` steps of the first.
inline Schedule TwoSequences(int vocab, int length0, int length1, int joint, int alone) {
  Schedule schedule(1);
  TokenStream tokens(vocab, 7);
  int at0 = 0, at1 = 0;
  while (at0 < length0 || at1 < length1) {
    const int n0 = std::min(5, length0 - at0), n1 = std::min(3, length1 - at1);
    Append(&schedule, &tokens, 0, at0, n0);
    Append(&schedule, &tokens, 1, at1, n1);
    at0 += n0;
    at1 += n1;
  }
  for (int i = 0; i < joint + alone; ++i) {
    schedule.emplace_back();
    if (i < joint && i % 2 == 1) Append(&schedule, &tokens, 1, at1++, 1);
    Append(&schedule, &tokens, 0, at0++, 1);
    if (i < joint && i % 2 == 0) Append(&schedule, &tokens, 1, at1++, 1);
  }
  return schedule;
}

// Opens or fails the test.
inline std::unique_ptr<Session> OpenOrFail(const SessionOptions& options) {
  Result<std::unique_ptr<Session>> session = Session::Open(options);
  if (session) return std::move(*session);
  ADD_FAILURE() << options.kv << " on " << options.model_path << ": " << session.error().ToString();
  return nullptr;
}

inline SessionOptions Options(const std::string& model, const std::string& kv) {
  SessionOptions options;
  options.model_path = model;
  options.kv = kv;
  options.ctx = 1024;
  options.ubatch = 128;
  options.max_sequences = 2;
  options.threads = 1;  // the engine's barriers spin: more would crawl on a busy machine (threads_test.cc has more)
  options.flash_attention = false;
  return options;
}

// Logits of every token that asked for them, in order; short when a Decode fails (and so does the test).
inline std::vector<float> RunSchedule(Session* session, const Schedule& schedule) {
  std::vector<float> logits;
  for (const std::vector<BatchToken>& batch : schedule) {
    if (const Status s = session->Decode(batch); !s.ok()) {
      ADD_FAILURE() << session->kv() << ": " << s.ToString();
      break;
    }
    const auto rows = std::count_if(batch.begin(), batch.end(), [](const BatchToken& t) { return t.logits; });
    for (int i = 0; i < rows; ++i) {
      const std::span<const float> row = session->Logits(i);
      logits.insert(logits.end(), row.begin(), row.end());
    }
  }
  return logits;
}

inline std::vector<float> RunSchedule(const SessionOptions& options, const Schedule& schedule) {
  const std::unique_ptr<Session> session = OpenOrFail(options);
  return session ? RunSchedule(session.get(), schedule) : std::vector<float>();
}

struct Difference {
  int64_t rows = 0;
  double relative_rms = 0;   // over all logits of all rows
  int64_t argmax_moved = 0;  // rows whose largest logit is another one
  std::vector<double> kl;    // of each row
  double kl_mean = 0, kl_max = 0;
};

// KL(reference || row) of the two softmax distributions.
inline double RowKl(const float* reference, const float* row, size_t vocab) {
  const auto log_sum = [vocab](const float* x) {
    const double top = *std::max_element(x, x + vocab);
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(x[i]) - top);
    return top + std::log(sum);
  };
  const double a = log_sum(reference), b = log_sum(row);
  double kl = 0;
  for (size_t i = 0; i < vocab; ++i) {
    const double log_p = static_cast<double>(reference[i]) - a;
    kl += std::exp(log_p) * (log_p - (static_cast<double>(row[i]) - b));
  }
  return kl;
}

// Fails the test when the two do not cover the same rows. Prints what it finds, after `name`.
inline Difference Compare(const std::string& name, const std::vector<float>& reference, const std::vector<float>& ours,
                          int vocab) {
  Difference result;
  EXPECT_EQ(reference.size(), ours.size()) << name;
  EXPECT_FALSE(reference.empty()) << name;
  if (reference.size() != ours.size() || reference.empty()) {
    result.relative_rms = result.kl_mean = INFINITY;
    return result;
  }
  const size_t n = static_cast<size_t>(vocab);
  double power = 0, error = 0;
  for (size_t at = 0; at < reference.size(); at += n, ++result.rows) {
    const float* a = reference.data() + at;
    const float* b = ours.data() + at;
    for (size_t i = 0; i < n; ++i) {
      const double d = static_cast<double>(b[i]) - static_cast<double>(a[i]);
      error += d * d;
      power += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    }
    result.argmax_moved += std::max_element(a, a + n) - a != std::max_element(b, b + n) - b ? 1 : 0;
    const double kl = RowKl(a, b, n);
    result.kl.push_back(kl);
    result.kl_mean += kl;
    result.kl_max = std::max(result.kl_max, kl);
  }
  result.kl_mean /= static_cast<double>(result.rows);
  result.relative_rms = std::sqrt(error / power);
  fmt::print("[ measured ] {}: {} rows, relative RMS {:.3g}, argmax moved {}, KL mean {:.3g}, max {:.3g}\n", name,
             result.rows, result.relative_rms, result.argmax_moved, result.kl_mean, result.kl_max);
  std::fflush(stdout);
  return result;
}

}  // namespace tersekv::llama

// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <random>

namespace tersekv::cli {
namespace {

// The definition, in double, one value after the other.
std::vector<double> LogSoftmax(const std::vector<float>& logits) {
  double best = -INFINITY, sum = 0;
  for (const float x : logits) best = std::max(best, double(x));
  for (const float x : logits) sum += std::exp(double(x) - best);
  std::vector<double> out;
  for (const float x : logits) out.push_back(double(x) - best - std::log(sum));
  return out;
}

// Long double: the plain sum cancels.
double PlainKl(const std::vector<float>& reference, const std::vector<float>& logits) {
  const auto p = LogSoftmax(reference), q = LogSoftmax(logits);
  long double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp((long double)p[i]) * ((long double)p[i] - q[i]);
  return double(kl);
}

std::vector<float> Gaussian(size_t n, float mean, float std, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(mean, std);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

std::vector<float> Disturbed(std::vector<float> x, float std, uint64_t seed) {
  const auto noise = Gaussian(x.size(), 0, std, seed);
  for (size_t i = 0; i < x.size(); ++i) x[i] += noise[i];
  return x;
}

TEST(EvalMetrics, EqualsPlainDoubleForEverySizeAndDistance) {
  for (const size_t vocab : {1u, 2u, 7u, 8u, 511u, 512u, 513u, 5000u, 49152u}) {
    for (const float spread : {0.5f, 4.0f, 20.0f}) {
      for (const float noise : {0.0f, 1e-3f, 0.1f, 3.0f}) {
        const auto x = Gaussian(vocab, 11, spread, vocab), y = Disturbed(x, noise, vocab + 1);
        const LogitRow a = AnalyseRow(x), b = AnalyseRow(y);
        ASSERT_TRUE(a.ok && b.ok);
        const double plain = PlainKl(x, y);
        EXPECT_NEAR(KlDivergence(a, b), plain, 1e-13 + 1e-6 * plain) << vocab << ' ' << spread << ' ' << noise;
        EXPECT_NEAR(NegLogLikelihood(a, int32_t(vocab / 2)), -LogSoftmax(x)[vocab / 2], 2e-7);
        EXPECT_EQ(a.argmax, std::max_element(x.begin(), x.end()) - x.begin());
      }
    }
  }
}

TEST(EvalMetrics, ARowAgainstItselfIsExactlyZero) {
  const auto x = Gaussian(49152, -3, 5, 1);
  const auto copy = x;
  EXPECT_EQ(KlDivergence(AnalyseRow(x), AnalyseRow(copy)), 0.0);
}

TEST(EvalMetrics, ShiftOfAllLogitsChangesNothing) {
  const auto x = Gaussian(1000, 0, 2, 3);
  auto y = x;
  for (float& v : y) v += 64;
  EXPECT_NEAR(KlDivergence(AnalyseRow(x), AnalyseRow(y)), 0, 1e-10);  // the sum is rounded to fp32
}

TEST(EvalMetrics, MaskedAndExtremeLogits) {
  std::vector<float> x = Gaussian(600, 0, 1, 4);
  x[3] = -INFINITY;
  x[599] = -2000;
  auto y = x;
  const LogitRow a = AnalyseRow(x), b = AnalyseRow(y);
  ASSERT_TRUE(a.ok);
  EXPECT_EQ(KlDivergence(a, b), 0.0);
  EXPECT_NEAR(a.lse, -LogSoftmax(x)[0] + double(x[0]), 1e-6);
  y[10] = 1e4f;  // all mass elsewhere
  EXPECT_GT(KlDivergence(a, AnalyseRow(y)), 9000);
}

TEST(EvalMetrics, FirstOfEqualMaximaWins) {
  std::vector<float> x(1000, 1.0f);
  EXPECT_EQ(AnalyseRow(x).argmax, 0);
  x[700] = x[900] = 2.0f;
  EXPECT_EQ(AnalyseRow(x).argmax, 700);
}

TEST(EvalMetrics, RefusesWhatIsNotFinite) {
  std::vector<float> x(100, 0.5f);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {0u, 57u, 99u}) {
      auto y = x;
      y[at] = bad;
      EXPECT_FALSE(AnalyseRow(y).ok) << bad << ' ' << at;
    }
  }
  EXPECT_FALSE(AnalyseRow(std::vector<float>(5, -INFINITY)).ok);
  EXPECT_FALSE(AnalyseRow({}).ok);
}

TEST(EvalMetrics, Quantiles) {
  const std::vector<double> x = {0, 1, 2, 3};
  EXPECT_DOUBLE_EQ(Quantile(x, 0), 0);
  EXPECT_DOUBLE_EQ(Quantile(x, 0.5), 1.5);
  EXPECT_DOUBLE_EQ(Quantile(x, 0.99), 2.97);
  EXPECT_DOUBLE_EQ(Quantile(x, 1), 3);
  EXPECT_DOUBLE_EQ(Quantile({7}, 0.99), 7);
}

TEST(EvalMetrics, Summary) {
  std::vector<TokenScore> scores = {{0.1, 1.0, true}, {0.3, 2.0, true}, {0.2, 3.0, false}, {0.0, 2.0, false}};
  const Summary s = Summarize(scores);
  EXPECT_DOUBLE_EQ(s.kl_mean, 0.15);
  EXPECT_DOUBLE_EQ(s.kl_median, 0.15);
  EXPECT_DOUBLE_EQ(s.kl_max, 0.3);
  EXPECT_DOUBLE_EQ(s.ppl, std::exp(2.0));
  EXPECT_DOUBLE_EQ(s.top1, 0.5);
  EXPECT_EQ(s.first_divergence, 2);
  scores.resize(2);
  EXPECT_EQ(Summarize(scores).first_divergence, -1);
}

TEST(EvalMetrics, ParallelForVisitsEachOnce) {
  for (const int threads : {1, 2, 5, 64}) {
    for (const int n : {0, 1, 37}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
      ParallelFor(n, threads, [&](int i) { ++visits[static_cast<size_t>(i)]; });
      for (const auto& v : visits) EXPECT_EQ(v, 1);
    }
  }
}

}  // namespace
}  // namespace tersekv::cli

// SPDX-License-Identifier: Apache-2.0
// Calibration: runs a text through a model, measures its keys, values and queries, how much each layer's K and V suffer
// from fewer bits, and solves for the bits of each layer exactly (docs/calibration.md). The model is run by the host
// behind CalibrationHost; nothing here knows an engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tersekv/attention.h"
#include "tersekv/cache.h"
#include "tersekv/profile.h"
#include "tersekv/spec.h"
#include "tersekv/status.h"

namespace tersekv {

// Takes what passes through a host's attention, at the three places where a KvCache is called and with the same
// arguments. Workers share KV heads: each call is made by all `workers`, with a barrier between layers' K and Attend.
// Tokens of a step belong to one sequence and follow each other; position 0 begins a new context.
class StatisticsSink {
 public:
  virtual ~StatisticsSink() = default;
  virtual Status BeginStep(std::span<const StepToken> tokens) = 0;
  virtual void WriteRows(int layer, Kv side, const float* rows, ptrdiff_t row_stride, int worker, int workers) = 0;
  // Reads queries.data only. K rows of the step must have been written.
  virtual void Attend(int layer, const AttentionParams& params, const Queries& queries, int worker, int workers) = 0;
};

// Sums in fp64, in token order: the same tokens give the same bits for any number of workers and any cut into steps.
class StatisticsCollector : public StatisticsSink {
 public:
  static Result<std::unique_ptr<StatisticsCollector>> Create(const std::vector<LayerShape>& layers);
  virtual int64_t tokens() const = 0;
  // Adds what another collector of the same shapes saw (another text, another thread).
  virtual Status Merge(const StatisticsCollector& other) = 0;
  // Statistics as profile layers and the number of sinks. output_square: by layer, (W_o^T W_o)_ii of each value channel
  // [kv_heads, head_dim_v], summed over the group's query heads; empty when the host does not know W_o.
  // kInvalidArgument: fewer than 64 tokens after the first positions.
  virtual Status MakeStatistics(const std::vector<std::vector<float>>& output_square, Profile* profile) const = 0;
};

// In place of code bits: the side stays raw.
inline constexpr int kRawBits = 16;

// What calibration asks of a host: "run these tokens".
class CalibrationHost {
 public:
  virtual ~CalibrationHost() = default;
  virtual ModelIdentity model() const = 0;
  virtual ChannelOrder channel_order() const = 0;
  // Runs the calibration text over a raw cache and shows it to the sink.
  virtual Status CollectStatistics(StatisticsSink* sink) = 0;
  // Means and scales that MeasureKl encodes with from now on.
  virtual Status UseProfile(const Profile& profile) = 0;
  // Mean forward KL, nats a token, of the model with these bits against its own raw cache, over the scored tokens. The
  // same bits must give the same number.
  virtual Result<double> MeasureKl(std::span<const LayerBits> bits) = 0;
};

struct CalibrationOptions {
  std::vector<double> bits = {2.5, 3, 3.5, 4, 4.5, 5, 6, 8};  // rows of byte_budget_table, each in [2, 8]
  std::vector<int> anchors = {2, 4};                          // widths measured for each unit, two different ones
  int protect_first = 0, protect_last = 0;                    // layers that keep 8 bits
  std::vector<std::vector<float>> output_square;              // as in MakeStatistics
};

struct CalibrationProgress {
  std::string what;         // "statistics", "layer 3 V at 2 bits", "4 bits together"
  int done = 0, total = 0;  // host calls
};

// The whole of it: statistics, sensitivities, allocation for each average, each choice measured together and solved
// once more. progress may be null. The host's errors come back as they are.
Result<Profile> Calibrate(const CalibrationOptions& options, CalibrationHost* host,
                          const std::function<void(const CalibrationProgress&)>& progress);

// Bytes a token that `--bits F` may spend: those of uniform kFvF, linear in bytes between neighbouring widths.
Result<int64_t> UniformBytesPerToken(const std::vector<LayerShape>& layers, double bits);

// Probe: what statistics alone predict, without measuring KL. A pure function of a profile's statistics.
struct ProbeLayer {
  double kv_norm_ratio = 0;  // sqrt(E|k|^2 / E|v|^2)
  double k_uncentred = 0;    // E|k|^2 / E|k - mean|^2: how much the mean inflates the error of mean=off
  double k_mean_gain_db = 0, k_scale_gain_db = 0;  // what mean and scale take off the logit error
  double v_uncentred = 0;                          // the same for values
};
struct ProbeSpec {
  std::string spec;             // kNvN
  double bits = 0;              // code bits, mean of K and V
  std::vector<double> k_kl;     // by layer: KL of attention weights from K, nats
  std::vector<double> v_error;  // by layer: relative squared error of attention output from V
  double k_kl_mean = 0, k_kl_worst = 0, k_kl_mean_off = 0;  // last one: mean over layers with mean=off and scale=off
  double v_error_mean = 0, v_error_worst = 0;
};
struct ProbeAdvice {
  std::string mode, spec;  // "quality", "balanced"
  std::vector<std::string> reasons;
};
struct ProbeReport {
  std::vector<ProbeLayer> layers;
  std::vector<ProbeSpec> specs;     // k2v2 ... k8v8, every pair with K >= V
  std::vector<ProbeAdvice> advice;  // quality, balanced
};
// kInvalidArgument: the profile has no attention statistics.
Result<ProbeReport> Probe(const Profile& profile);

}  // namespace tersekv

// SPDX-License-Identifier: Apache-2.0
// The flow of a calibration: statistics, sensitivities, allocation, joint measurement, a second solution.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/check.h"
#include "src/calibration/distortion.h"
#include "src/calibration/sensitivity.h"
#include "tersekv/calibration.h"
#include "tersekv/version.h"

namespace tersekv {
namespace {

using Bits = std::vector<LayerBits>;

constexpr double kMostFactor = 16;  // of joint factors, either way

Status CheckBits(double bits) {
  if (bits >= kLeastCodeBits && bits <= kMostCodeBits) return {};
  return InvalidArgument(fmt::format("bits is {}: the range is {} to {}", bits, kLeastCodeBits, kMostCodeBits));
}

Status CheckOptions(const CalibrationOptions& options) {
  for (const double bits : options.bits) TERSEKV_RETURN_IF_ERROR(CheckBits(bits));
  if (options.anchors.size() != 2 || options.anchors[0] == options.anchors[1]) {
    return InvalidArgument(
        fmt::format("anchors are [{}]: give two different widths", fmt::join(options.anchors, ", ")));
  }
  for (const int bits : options.anchors) TERSEKV_RETURN_IF_ERROR(CheckBits(bits));
  if (options.protect_first < 0 || options.protect_last < 0) {
    return InvalidArgument(fmt::format("protect_first and protect_last are {} and {}: they cannot be negative",
                                       options.protect_first, options.protect_last));
  }
  return {};
}

Bits Uniform(size_t layers, int bits) { return Bits(layers, {bits, bits}); }

Bits OneSide(Bits bits, Kv side) {
  for (LayerBits& b : bits) (side == Kv::kK ? b.v : b.k) = kRawBits;
  return bits;
}

double JointFactor(double measured, double predicted) {
  if (!(predicted > 0) || !(measured > 0)) return 1;
  return std::clamp(measured / predicted, 1 / kMostFactor, kMostFactor);
}

class Calibrator {
 public:
  Calibrator(const CalibrationOptions& options, CalibrationHost* host,
             const std::function<void(const CalibrationProgress&)>& progress)
      : options_(options), host_(*host), progress_(progress), model_(host->model()) {
    std::sort(options_.bits.begin(), options_.bits.end());
    options_.bits.erase(std::unique(options_.bits.begin(), options_.bits.end()), options_.bits.end());
    std::sort(options_.anchors.begin(), options_.anchors.end());
    size_t units = 0;
    for (const LayerShape& shape : model_.layers) units += shape.latent ? 1 : 2;
    total_ = 1 + static_cast<int>(units * options_.anchors.size() + kRunsAnAverage * options_.bits.size());
  }

  Result<Profile> Run() {
    if (const Status s = CheckBudgets(); !s.ok()) return s;
    if (const Status s = Statistics(); !s.ok()) return s;
    if (const Status s = Sensitivities(); !s.ok()) return s;
    const SensitivityModel model(model_.layers, profile_.sensitivities, options_.protect_first, options_.protect_last);
    for (size_t i = 0; i < options_.bits.size(); ++i) {
      if (const Status s = Allocate(model, options_.bits[i]); !s.ok()) return s;
      done_ = total_ - static_cast<int>(kRunsAnAverage * (options_.bits.size() - i - 1));
    }
    Report("done");
    return std::move(profile_);
  }

 private:
  static constexpr size_t kRunsAnAverage = 5;  // at most: together, K alone, V alone, solved again, uniform

  void Report(const std::string& what) {
    if (progress_) progress_({what, done_, total_});
  }

  // Before hours of measuring: every budget must have a solution.
  Status CheckBudgets() const {
    std::vector<UnitSensitivity> none(2 * model_.layers.size());
    for (UnitSensitivity& unit : none) unit.anchors = {{kLeastCodeBits, 1.0}};
    const SensitivityModel model(model_.layers, none, options_.protect_first, options_.protect_last);
    for (const double bits : options_.bits) {
      const Result<int64_t> budget = UniformBytesPerToken(model_.layers, bits);
      if (!budget) return budget.error();
      if (const auto solved = model.Solve(*budget, {}); !solved) {
        return {solved.error().code(), fmt::format("{} bits: {}", bits, solved.error().message())};
      }
    }
    return {};
  }

  Status Statistics() {
    Report("statistics");
    std::vector<LayerShape> shapes = model_.layers;
    for (LayerShape& shape : shapes) shape.latent = false;  // how a cache keeps it is no property of the model
    Result<std::unique_ptr<StatisticsCollector>> collector = StatisticsCollector::Create(shapes);
    if (!collector) return collector.error();
    TERSEKV_RETURN_IF_ERROR(host_.CollectStatistics(collector->get()));
    TERSEKV_RETURN_IF_ERROR((*collector)->MakeStatistics(options_.output_square, &profile_));
    profile_.tersekv_version = Version();
    profile_.model_name = model_.name;
    profile_.model_fingerprint = model_.fingerprint;
    profile_.channel_order = host_.channel_order();
    ++done_;
    return host_.UseProfile(profile_);
  }

  Status Sensitivities() {
    for (size_t l = 0; l < model_.layers.size(); ++l) {
      for (const Kv side : {Kv::kK, Kv::kV}) {
        UnitSensitivity unit;
        unit.layer = static_cast<int>(l);
        unit.side = side;
        for (const int width : options_.anchors) {
          if (model_.layers[l].latent && side == Kv::kV) {  // measured as K
            unit.anchors.push_back({width, 0});
            continue;
          }
          Bits bits = Uniform(model_.layers.size(), kRawBits);
          (side == Kv::kK ? bits[l].k : bits[l].v) = width;
          const std::string what = fmt::format("layer {} {} at {} bits", l, side == Kv::kK ? "K" : "V", width);
          const Result<double> kl = Measure(bits, what);
          if (!kl) return kl.error();
          unit.anchors.push_back({width, *kl});
        }
        profile_.sensitivities.push_back(std::move(unit));
      }
    }
    return {};
  }

  // The choice for one average. Joint KL differs from the units' sum; one common factor would not move the optimum, so
  // K and V get factors of their own, from a run of each alone. The best choice measured together stands.
  Status Allocate(const SensitivityModel& model, double average) {
    const Result<int64_t> budget = UniformBytesPerToken(model_.layers, average);
    if (!budget) return budget.error();
    Result<Bits> first = model.Solve(*budget, {});
    if (!first) return first.error();
    JointFactors factors;
    for (const Kv side : {Kv::kK, Kv::kV}) {
      const Bits alone = OneSide(*first, side);
      const Result<double> kl = Measure(alone, fmt::format("{} bits, {} alone", average, side == Kv::kK ? "K" : "V"));
      if (!kl) return kl.error();
      (side == Kv::kK ? factors.k : factors.v) = JointFactor(*kl, model.Predict(alone, {}));
    }
    const Result<Bits> second = model.Solve(*budget, factors);
    if (!second) return second.error();
    std::vector<Bits> candidates = {*first};
    if (*second != *first) candidates.push_back(*second);
    const bool any_protected = options_.protect_first + options_.protect_last > 0;
    if (average == std::floor(average) && !any_protected) {
      candidates.push_back(Uniform(model_.layers.size(), static_cast<int>(average)));
    }
    BudgetEntry entry;
    entry.bits = average;
    const Bits* best = nullptr;
    for (const Bits& candidate : candidates) {
      const Result<double> kl = Measure(candidate, fmt::format("{} bits together", average));
      if (!kl) return kl.error();
      if (best != nullptr && *kl >= *entry.measured_kl) continue;
      best = &candidate;
      entry.measured_kl = *kl;
    }
    for (const LayerBits& bits : *best) {
      entry.k_bits.push_back(bits.k);
      entry.v_bits.push_back(bits.v);
    }
    entry.bytes_per_token = model.BytesPerToken(*best);
    entry.predicted_kl = model.Predict(*best, factors);
    profile_.byte_budget_table.push_back(std::move(entry));
    return {};
  }

  Result<double> Measure(const Bits& bits, const std::string& what) {
    for (const auto& [seen, kl] : measured_) {
      if (seen == bits) return kl;
    }
    Report(what);
    const Result<double> kl = host_.MeasureKl(bits);
    if (!kl) return kl.error();
    if (!std::isfinite(*kl)) return Internal(fmt::format("{}: the host measured a KL of {}", what, *kl));
    ++done_;
    measured_.emplace_back(bits, std::max(*kl, 0.0));  // rounding may leave it below 0
    return measured_.back().second;
  }

  CalibrationOptions options_;
  CalibrationHost& host_;
  const std::function<void(const CalibrationProgress&)>& progress_;
  const ModelIdentity model_;
  Profile profile_;
  std::vector<std::pair<Bits, double>> measured_;
  int done_ = 0, total_ = 0;
};

}  // namespace

Result<int64_t> UniformBytesPerToken(const std::vector<LayerShape>& layers, double bits) {
  TERSEKV_RETURN_IF_ERROR(CheckBits(bits));
  const auto uniform = [&](int b) {
    int64_t bytes = 0;
    for (const LayerShape& shape : layers) {
      bytes += SideBytesPerToken(shape, Kv::kK, b) + SideBytesPerToken(shape, Kv::kV, b);
    }
    return bytes;
  };
  const int low = std::min(static_cast<int>(bits), kMostCodeBits - 1);
  const int64_t below = uniform(low), above = uniform(low + 1);
  return below + static_cast<int64_t>(std::floor((bits - low) * static_cast<double>(above - below)));
}

Result<Profile> Calibrate(const CalibrationOptions& options, CalibrationHost* host,
                          const std::function<void(const CalibrationProgress&)>& progress) {
  TERSEKV_RETURN_IF_ERROR(CheckOptions(options));
  return Calibrator(options, host, progress).Run();
}

}  // namespace tersekv

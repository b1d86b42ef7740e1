// SPDX-License-Identifier: Apache-2.0
// Calibration of a GGUF model through the llama.cpp host (docs/calibration.md). Link tersekv::llama.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tersekv/calibration.h"
#include "tersekv/llama.h"

namespace tersekv::llama {

struct CalibrationHostOptions {
  std::string model_path;
  std::string text;
  std::string kv = "k4v4";        // "kNvN": everything but the widths is kept in all measurements
  std::string reference = "f16";  // raw cache that statistics are read from and KL is measured against
  int64_t tokens = 8192;          // of statistics, in contexts of at most `context` that lie evenly over the text
  int64_t context = 2048;
  // KL: the last kl_scored tokens of kl_contexts contexts of kl_context tokens. Fewer where the text is short.
  int kl_contexts = 2;
  int64_t kl_context = 512, kl_scored = 256;
  int threads = 0;  // 0 = all cores
  HostMode mode = HostMode::kAuto;
  Arithmetic arithmetic = Arithmetic::kInt16;
  std::function<void(int64_t done, int64_t total)> progress;  // of statistics, in tokens; may be null
};

// Two things beyond CalibrationHost. A raw side (kRawBits) is stored at 8 bits; the KL of all sides at 8 bits is
// measured once and the share of the raw ones subtracted. Results are remembered by bits.
class LlamaCalibrationHost : public CalibrationHost {
 public:
  virtual const ModelInfo& info() const = 0;
  // For CalibrationOptions; empty when the file does not tell.
  virtual std::vector<std::vector<float>> OutputSquares() const = 0;
  virtual int64_t scored_tokens() const = 0;
  virtual int64_t statistics_tokens() const = 0;
};

// Holds the model, one packed cache and the reference's logits: 4 bytes x vocabulary x scored tokens. kInvalidArgument:
// a text of fewer than 160 tokens, a spec that is no kNvN.
Result<std::unique_ptr<LlamaCalibrationHost>> MakeCalibrationHost(const CalibrationHostOptions& options);

}  // namespace tersekv::llama

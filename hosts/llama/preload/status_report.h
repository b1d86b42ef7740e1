// SPDX-License-Identifier: Apache-2.0
// What is told of the packed contexts of a process, and its forms: JSON and Prometheus text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hosts/llama/preload/drift.h"
#include "tersekv/cache.h"

namespace tersekv::llama::preload {

// Since the context was made.
struct Activity {
  struct Kind {
    int64_t tokens = 0, calls = 0;
    double seconds = 0;  // of llama_decode
  };
  Kind prompt, generation;  // a call with several tokens of a sequence is a prompt's
  double attention_seconds = 0;
  int64_t full = 0, refused = 0, failed = 0;  // calls that ended without
};

struct SlotReport {
  int32_t id = 0;
  int64_t tokens = 0;
  size_t bytes = 0;            // of its own and of shared pages
  size_t shared_bytes = 0;     // of those, in pages that other slots hold as well
  std::vector<size_t> layers;  // bytes, by KV layer
};

struct ContextReport {
  int id = 0;
  std::string model, spec, mode;
  double bits_spec = 0;
  uint32_t ctx = 0, ctx_seq = 0;
  int sequences = 0;
  size_t budget = 0;
  CacheUsage usage;
  int64_t pages = 0, pages_shared = 0;  // over all layers; shared: held by several slots
  std::vector<SlotReport> slots;        // that hold tokens
  Activity activity;
  DriftReport drift;
  bool broken = false;
};

// Of the whole process.
struct ProcessReport {
  double uptime_seconds = 0;
  int64_t contexts_packed = 0, contexts_passed = 0, contexts_refused = 0;  // ever
  std::vector<ContextReport> contexts;                                     // now
};

// Pages, tokens and bytes by slot and layer. The cache is between steps.
void DescribeSlots(const KvCache& cache, ContextReport* report);

std::string ToJson(const ProcessReport& report);
std::string ToPrometheus(const ProcessReport& report);

}  // namespace tersekv::llama::preload

// SPDX-License-Identifier: Apache-2.0
// Sequences between steps: the way back, reading, sizes.
#include <algorithm>
#include <span>

#include "python/src/layer_cache.h"
#include "python/src/pool.h"

namespace tersekv::python {
namespace {

constexpr int64_t kMeasured = 128;  // tokens behind the sinks that statistics are made of
constexpr int64_t kTrim = 1024;     // places without pages that a windowed layer's tables keep at most, about

}  // namespace

// One token can be cut off again without a trace, unless statistics are made of it; more would leave rows packed that
// were raw (docs/decisions/0004-after-a-truncation.md), so these sequences are forked.
Status PyCache::Keep(const std::vector<Row>& rows) {
  const int64_t measures = cache_->config().spec.sink + kMeasured - 1;
  for (const auto& [seq, first, count, position] : rows) {
    if (count == 0 || ways_.contains(seq)) continue;
    Way way{cache_->Length(seq), false};
    if (way.tokens > 0 && (count > 1 || way.tokens == measures)) {
      if (Status s = cache_->Fork(seq, kKept + seq); s.code() == StatusCode::kOutOfBudget) {
        memory_->Release();
        if (s = cache_->Fork(seq, kKept + seq); !s.ok()) return s;
      } else if (!s.ok()) {
        return s;
      }
      way.kept = true;
    }
    ways_[seq] = way;
  }
  return {};
}

void PyCache::Undo(const std::vector<int32_t>& sequences) {
  Status status;
  {
    const Turn turn(*memory_);
    for (const int32_t seq : sequences) {
      const auto way = ways_.find(seq);
      if (way == ways_.end()) continue;
      Status s;
      if (way->second.kept) {
        cache_->Remove(seq);  // frees more than the fork takes
        s = cache_->Fork(kKept + seq, seq);
        cache_->Remove(kKept + seq);
      } else {
        s = cache_->Truncate(seq, way->second.tokens);
      }
      ways_.erase(way);
      if (status.ok()) status = s;
    }
  }
  Check(status);
}

void PyCache::Settle(const std::vector<int32_t>& sequences) {
  const Turn turn(*memory_);
  for (const int32_t seq : sequences) {
    if (ways_.erase(seq) > 0) cache_->Remove(kKept + seq);
    if (!cache_->config().windows.empty()) Trim(seq);
  }
}

// Tokens whose pages a windowed layer has given back leave its tables too, so that these do not grow for ever.
void PyCache::Trim(int32_t sequence) {
  const std::span<const int32_t> positions = cache_->Positions(sequence);
  const size_t sink = static_cast<size_t>(cache_->config().spec.sink);
  if (positions.size() <= sink) return;
  const int32_t first = cache_->FirstPosition(sequence), begin = positions[sink];
  const auto held = std::lower_bound(positions.begin(), positions.end(), first);
  if (held - positions.begin() < static_cast<int64_t>(sink) + kTrim) return;
  (void)cache_->RemoveRange(sequence, begin, first);  // nothing is cut off that a query sees: it cannot fail
}

void PyCache::Read(std::string_view side, const std::vector<int32_t>& sequences, int32_t low, int32_t tokens,
                   const Tensor& output) {
  const View out(output);
  Status status;
  {
    const Turn turn(*memory_);
    status = ReadAll(side == "v" ? Kv::kV : Kv::kK, sequences, low, tokens, out);
  }
  Check(status);
}

Status PyCache::ReadAll(Kv side, const std::vector<int32_t>& sequences, int32_t low, int32_t tokens, const View& out) {
  const size_t d = static_cast<size_t>(side == Kv::kK ? shape_.head_dim_k : shape_.head_dim_v);
  const size_t heads = static_cast<size_t>(shape_.kv_heads);
  const std::vector<float> zeros(d);
  std::vector<Status> failures(static_cast<size_t>(workers_));
  for (size_t b = 0; b < sequences.size(); ++b) {
    const std::span<const int32_t> positions = cache_->Positions(sequences[b]);
    const auto work = [&](int worker, int workers) {
      std::vector<float> row(heads * d);
      size_t order = static_cast<size_t>(std::lower_bound(positions.begin(), positions.end(), low) - positions.begin());
      for (int32_t t = 0; t < tokens; ++t) {
        const bool there = order < positions.size() && positions[order] == low + t;
        if (t % workers == worker) {
          if (there) {
            const Status s = cache_->ReadRows(sequences[b], 0, side, static_cast<int64_t>(order), 1, row.data(), 0);
            if (!s.ok()) {
              failures[static_cast<size_t>(worker)] = s;
              return;
            }
          }
          for (size_t h = 0; h < heads; ++h) {
            StoreRow(there ? row.data() + h * d : zeros.data(), out.dtype, d, out.At(b, h, static_cast<size_t>(t)));
          }
        }
        if (there) ++order;
      }
    };
    RunOnThreads(workers_, work);
  }
  for (const Status& s : failures) {
    if (!s.ok()) return s;
  }
  return {};
}

int64_t PyCache::Length(int32_t sequence) {
  const Turn turn(*memory_);
  return cache_->Length(sequence);
}

void PyCache::Truncate(int32_t sequence, int64_t tokens) {
  Status status;
  {
    const Turn turn(*memory_);
    status = cache_->Truncate(sequence, tokens);
  }
  Check(status);
}

void PyCache::Crop(int32_t sequence, int32_t position) {
  Status status;
  {
    const Turn turn(*memory_);
    status = cache_->RemoveRange(sequence, position, -1);
  }
  Check(status);
}

void PyCache::Fork(int32_t from, int32_t to) {
  Status status;
  {
    const Turn turn(*memory_);
    status = cache_->Fork(from, to);
  }
  Check(status);
}

void PyCache::Remove(int32_t sequence) {
  const Turn turn(*memory_);
  cache_->Remove(sequence);
  if (ways_.erase(sequence) > 0) cache_->Remove(kKept + sequence);
}

CacheUsage PyCache::Usage() {
  const Turn turn(*memory_);
  CacheUsage usage = cache_->Usage();
  usage.scratch += memory_->staging();
  usage.bytes_reserved -= memory_->charged;
  return usage;
}

size_t PyCache::Formula(int64_t tokens) {
  const Turn turn(*memory_);
  return FormulaBytes(cache_->config(), tokens);
}

void PyCache::SetHeads(int heads) {
  Status status;
  {
    const Turn turn(*memory_);
    status = cache_->SetQueryHeads(0, heads);
    if (status.ok()) shape_.heads = heads;
  }
  Check(status);
}

int PyCache::heads() {
  const Turn turn(*memory_);
  return shape_.heads;
}

}  // namespace tersekv::python

// SPDX-License-Identifier: Apache-2.0
// One vector at a time: canonical records of K or V rows (docs/formats.md, "Canonical record"). This is the format that
// files, hashes and golden tests mean; the cache keeps a permutation of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tersekv/cache.h"
#include "tersekv/spec.h"
#include "tersekv/status.h"

namespace tersekv {

// What is applied to a row before coding, for one layer, KV head and side. Empty vectors: nothing.
struct RowStats {
  std::vector<float> mean;   // [head_dim]
  std::vector<float> scale;  // [head_dim], > 0; the row is divided by it
};

class VectorCodec {
 public:
  // layer and kv_head pick the sign stream. kUnsupported / kInvalidArgument as in KvCache::Create.
  static Result<std::unique_ptr<VectorCodec>> Create(const KvSpec& spec, Kv side, int head_dim, int layer = 0,
                                                     int kv_head = 0, RowStats stats = {});
  virtual ~VectorCodec() = default;

  virtual int head_dim() const = 0;
  // Rows that one record holds: 1, or a page of the spec for KIVI's keys.
  virtual size_t record_rows() const { return 1; }
  virtual size_t record_bytes() const = 0;
  // rows: [n, head_dim] fp32, contiguous, n a multiple of record_rows(). records: [n / record_rows(), record_bytes]. A
  // value that is not finite: kDataLoss, the message names row and channel, nothing was written. Thread-safe.
  virtual Status Encode(const float* rows, size_t n, uint8_t* records) const = 0;
  // out: [n, head_dim] fp32 in the original space (rotation undone, scale and mean put back); any n: the first n
  // rows of the records. Thread-safe.
  virtual void Decode(const uint8_t* records, size_t n, float* out) const = 0;
  // out[i] = <query, x_i> for the vectors x_i that Decode gives, up to fp32 rounding, without restoring any of them:
  // the query is scaled and rotated once and multiplied with codes. query: [head_dim]; out: [n]; n as above.
  // Thread-safe.
  virtual void InnerProducts(const uint8_t* records, size_t n, const float* query, float* out) const = 0;
};

// Bytes at the end of a record that are the vector's scale as bf16: 2, or 0 where scales lie otherwise or are not
// there.
size_t RecordScaleBytes(const KvSpec& spec, Kv side);

// What a codec asks of attention and of writing, cheapest first.
enum class CodecCost : uint8_t {
  kNone,     // raw values
  kInteger,  // codes are integers up to a scale a vector and are multiplied as such
  kTable,    // each value is looked up or scaled into fp32 first
  kSearch,   // as kTable, and a vector is searched for when it is written or transformed when it is read
};

struct CodecInfo {
  std::string spec;  // canonical spec string
  double bits;       // code bits a value, mean of K and V
  std::string description;
  CodecCost cost;
  bool integer_kernels;  // attention on CPUs: integer kernels; else fp32 over tiles
};
// Every codec of the list, in the order of the grammar.
std::vector<CodecInfo> ListCodecs();

// Distortion is E|x - x'|^2 / E|x|^2 of decoded vectors x'.
//
// What one side of a spec should have on Gaussian rows of independent channels, from theory or, for codecs without one,
// from experiments with independent code at head_dim 128 (docs/perf/codecs.md). Empty: nobody computed it.
std::optional<double> ExpectedDistortion(const KvSpec& spec, Kv side, int head_dim);
// What it has. rows: [n, head_dim], n a multiple of record_rows(). Errors as in Encode.
Result<double> MeasureDistortion(const VectorCodec& codec, const float* rows, size_t n);
// Statistics that a spec without a profile takes of these rows: mean (mean=stats), for K a scale too (scale=on). The
// scale of fp8-head and fp8-tensor is a factor of it, for a codec of layer 0 and head 0 where the spec has a rotation.
RowStats MeasureRowStats(const KvSpec& spec, Kv side, int head_dim, const float* rows, size_t n);

// Encodes and decodes known rows with every codec of the list on every SIMD target of this machine: bytes and values
// must equal those of plain code, the error must be what theory says. Used by `tersekv doctor` and `bench codec`. Takes
// tenths of a second; not while other threads use the library, because it switches targets.
Status SelfTestCodecs();

// SIMD targets that the kernels may run on here, best first, e.g. {"AVX3", "AVX2", "SSE4"}; the first is in use.
// TERSEKV_FORCE_ISA picks another one.
std::vector<std::string> SimdTargets();

}  // namespace tersekv

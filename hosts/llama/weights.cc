// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

#include "ggml.h"
#include "gguf.h"
#include "src/io/crc64.h"

namespace tersekv::llama {
namespace {

constexpr uint64_t kWholeBytes = 64 << 10;  // of a tensor, read whole up to here
constexpr uint64_t kPieceBytes = 1 << 10;   // of a larger one: pieces
constexpr uint64_t kPieces = kWholeBytes / kPieceBytes;

struct GgufDelete {
  void operator()(gguf_context* file) const { gguf_free(file); }
};
using GgufPtr = std::unique_ptr<gguf_context, GgufDelete>;

GgufPtr OpenHead(const std::string& path) { return GgufPtr(gguf_init_from_file(path.c_str(), {true, nullptr})); }

class CrcOfFile {
 public:
  explicit CrcOfFile(const std::string& path) : in_(path, std::ios::binary) {}
  bool Add(uint64_t offset, uint64_t bytes) {
    buffer_.resize(bytes);
    in_.seekg(static_cast<std::streamoff>(offset));
    in_.read(buffer_.data(), static_cast<std::streamsize>(bytes));
    crc_ = Crc64({buffer_.data(), static_cast<size_t>(in_.gcount())}, crc_);
    return static_cast<uint64_t>(in_.gcount()) == bytes;
  }
  void Add(const std::string& text) { crc_ = Crc64(text, crc_); }
  uint64_t crc() const { return crc_; }

 private:
  std::ifstream in_;
  std::string buffer_;
  uint64_t crc_ = 0;
};

}  // namespace

Result<std::string> FingerprintFile(const std::string& path) {
  const GgufPtr head = OpenHead(path);
  if (!head) return DataLoss(fmt::format("the head of {} cannot be read", path));
  const uint64_t data = gguf_get_data_offset(head.get());
  CrcOfFile crc(path);
  std::error_code error;
  crc.Add(fmt::format("{}", std::filesystem::file_size(path, error)));
  bool whole = crc.Add(0, data);
  for (int64_t t = 0; t < gguf_get_n_tensors(head.get()); ++t) {
    const uint64_t begin = data + gguf_get_tensor_offset(head.get(), t), size = gguf_get_tensor_size(head.get(), t);
    if (size <= kWholeBytes) {
      whole &= crc.Add(begin, size);
      continue;
    }
    for (uint64_t i = 0; i < kPieces; ++i) {
      whole &= crc.Add(begin + (size - kPieceBytes) / (kPieces - 1) * i, kPieceBytes);
    }
  }
  if (!whole) return DataLoss(fmt::format("{} is cut off: its tensors reach beyond its end", path));
  return fmt::format("{:016x}", crc.crc());
}

bool HasTensor(const std::string& path, const std::string& name) {
  const GgufPtr head = OpenHead(path);
  return head && gguf_find_tensor(head.get(), name.c_str()) >= 0;
}

std::vector<std::vector<float>> ReadOutputSquares(const std::string& path, const std::vector<LayerShape>& layers,
                                                  const std::vector<int>& numbers) {
  const GgufPtr head = OpenHead(path);
  if (!head) return {};
  std::ifstream in(path, std::ios::binary);
  std::vector<std::vector<float>> squares;
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerShape& shape = layers[l];
    const int64_t tensor = gguf_find_tensor(head.get(), fmt::format("blk.{}.attn_output.weight", numbers[l]).c_str());
    const auto inputs = static_cast<size_t>(shape.heads) * static_cast<size_t>(shape.head_dim_v);
    if (tensor < 0) return {};
    const int64_t* extent = gguf_get_tensor_ne(head.get(), tensor);
    const ggml_type type = gguf_get_tensor_type(head.get(), tensor);
    const ggml_to_float_t to_float = ggml_get_type_traits(type)->to_float;
    if (static_cast<size_t>(extent[0]) != inputs || (type != GGML_TYPE_F32 && to_float == nullptr)) return {};
    std::vector<char> row(ggml_row_size(type, extent[0]));
    std::vector<float> values(inputs);
    std::vector<double> sums(inputs);
    in.seekg(
        static_cast<std::streamoff>(gguf_get_data_offset(head.get()) + gguf_get_tensor_offset(head.get(), tensor)));
    for (int64_t r = 0; r < extent[1]; ++r) {
      if (!in.read(row.data(), static_cast<std::streamsize>(row.size()))) return {};
      if (type == GGML_TYPE_F32) {
        std::copy_n(row.data(), row.size(), reinterpret_cast<char*>(values.data()));
      } else {
        to_float(row.data(), values.data(), extent[0]);
      }
      for (size_t c = 0; c < inputs; ++c) sums[c] += static_cast<double>(values[c]) * static_cast<double>(values[c]);
    }
    // Query head h reads KV head h / group.
    const auto d = static_cast<size_t>(shape.head_dim_v), group = static_cast<size_t>(shape.heads / shape.kv_heads);
    std::vector<double> grouped(static_cast<size_t>(shape.kv_heads) * d);
    for (size_t c = 0; c < inputs; ++c) grouped[c / d / group * d + c % d] += sums[c];
    squares.emplace_back(grouped.begin(), grouped.end());
  }
  return squares;
}

}  // namespace tersekv::llama

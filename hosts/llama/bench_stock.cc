// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "hosts/llama/noise.h"
#include "src/base/half.h"
#include "tersekv/llama_bench.h"

namespace tersekv::llama {
namespace {

constexpr int64_t kCellPadding = 256;  // llama.cpp attends over a multiple of this

struct ContextFree {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
struct BackendFree {
  void operator()(ggml_backend* backend) const { ggml_backend_free(backend); }
};
struct BufferFree {
  void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
};

class StockBench : public AttentionBench {
 public:
  StockBench(const AttentionBenchShape& shape, ggml_type type, const AttentionBenchRows& rows)
      : shape_(shape.layer),
        layers_(shape.layers),
        depth_(shape.depth),
        queries_(shape.queries),
        type_(type),
        rows_(rows),
        pool_(shape.threads) {
    backend_.reset(ggml_backend_cpu_init());
    ggml_backend_cpu_set_n_threads(backend_.get(), shape.threads);
  }

  bool Build() {
    const ggml_init_params params = {
        ggml_tensor_overhead() * (16 + 8 * static_cast<size_t>(layers_)) + ggml_graph_overhead_custom(Nodes(), false),
        nullptr, true};
    context_.reset(ggml_init(params));
    ggml_context* c = context_.get();
    const int64_t cells = (depth_ + queries_ + kCellPadding - 1) / kCellPadding * kCellPadding;
    q_ = ggml_new_tensor_3d(c, GGML_TYPE_F32, shape_.head_dim_k, shape_.heads, queries_);
    mask_ = ggml_new_tensor_2d(c, GGML_TYPE_F16, cells, queries_);
    graph_ = ggml_new_graph_custom(c, Nodes(), false);
    for (int l = 0; l < layers_; ++l) {
      ggml_tensor* k = ggml_new_tensor_3d(c, type_, shape_.head_dim_k, shape_.kv_heads, cells);
      ggml_tensor* v = ggml_new_tensor_3d(c, type_, shape_.head_dim_v, shape_.kv_heads, cells);
      ggml_tensor* out = ggml_flash_attn_ext(c, ggml_permute(c, q_, 0, 2, 1, 3), ggml_permute(c, k, 0, 2, 1, 3),
                                             ggml_permute(c, v, 0, 2, 1, 3), mask_,
                                             1.0f / std::sqrt(static_cast<float>(shape_.head_dim_k)), 0, 0);
      k_.push_back(k);
      v_.push_back(v);
      outs_.push_back(out);
      ggml_build_forward_expand(graph_, out);
    }
    buffer_.reset(ggml_backend_alloc_ctx_tensors(c, backend_.get()));
    return buffer_ != nullptr;
  }

  void Fill() {
    for (int l = 0; l < layers_; ++l) {
      FillSide(k_[static_cast<size_t>(l)], shape_.kv_heads * shape_.head_dim_k, rows_.k);
      FillSide(v_[static_cast<size_t>(l)], shape_.kv_heads * shape_.head_dim_v, rows_.v);
    }
    std::vector<ggml_fp16_t> mask(static_cast<size_t>(ggml_nelements(mask_)));
    for (int64_t i = 0; i < queries_; ++i) {
      for (int64_t j = 0; j < mask_->ne[0]; ++j) {
        const bool seen = j <= depth_ + i;
        mask[static_cast<size_t>(i * mask_->ne[0] + j)] =
            F32ToF16(seen ? 0.0f : -std::numeric_limits<float>::infinity());
      }
    }
    ggml_backend_tensor_set(mask_, mask.data(), 0, ggml_nbytes(mask_));
    ggml_backend_tensor_set(q_, rows_.q.data(), 0, ggml_nbytes(q_));
  }

  Result<StepSeconds> Run() override {
    StayBusy(&pool_);
    const auto start = std::chrono::steady_clock::now();
    if (ggml_backend_graph_compute(backend_.get(), graph_) != GGML_STATUS_SUCCESS) {
      return Internal("llama.cpp's attention failed");
    }
    return StepSeconds{0, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
  }

  std::vector<float> Output() const override {
    std::vector<float> out(static_cast<size_t>(ggml_nelements(outs_[0])));
    ggml_backend_tensor_get(outs_[0], out.data(), 0, ggml_nbytes(outs_[0]));
    return out;
  }

  size_t cache_bytes() const override {
    return static_cast<size_t>(layers_) * static_cast<size_t>(depth_ + queries_) *
           (ggml_row_size(type_, shape_.kv_heads * shape_.head_dim_k) +
            ggml_row_size(type_, shape_.kv_heads * shape_.head_dim_v));
  }

 private:
  size_t Nodes() const { return 16 + 8 * static_cast<size_t>(layers_); }

  void FillSide(ggml_tensor* tensor, int64_t width, const std::vector<std::vector<float>>& rows) {
    std::vector<uint8_t> row(ggml_row_size(type_, width));
    const int64_t cells = tensor->ne[2];
    for (int64_t t = 0; t < cells; ++t) {
      const float* from = rows[static_cast<size_t>(t) % rows.size()].data();
      if (type_ == GGML_TYPE_F32) {
        std::memcpy(row.data(), from, row.size());
      } else {
        ggml_quantize_chunk(type_, from, row.data(), 0, 1, width, nullptr);
      }
      ggml_backend_tensor_set(tensor, row.data(), static_cast<size_t>(t) * row.size(), row.size());
    }
  }

  LayerShape shape_;
  int layers_;
  int64_t depth_;
  int queries_;
  ggml_type type_;
  const AttentionBenchRows& rows_;
  ThreadPool pool_;  // to be as warm as ours
  std::unique_ptr<ggml_backend, BackendFree> backend_;
  std::unique_ptr<ggml_context, ContextFree> context_;
  std::unique_ptr<ggml_backend_buffer, BufferFree> buffer_;
  ggml_tensor *q_ = nullptr, *mask_ = nullptr;
  std::vector<ggml_tensor*> k_, v_, outs_;
  ggml_cgraph* graph_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<AttentionBench>> AttentionBench::Stock(const AttentionBenchShape& shape, const std::string& name,
                                                              const AttentionBenchRows& rows) {
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q5_0,
                               GGML_TYPE_Q5_1, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_IQ4_NL}) {
    if (name != ggml_type_name(type)) continue;
    const int64_t block = ggml_blck_size(type);
    if (shape.layer.head_dim_k % block != 0 || shape.layer.head_dim_v % block != 0) {
      return Unsupported(fmt::format("llama.cpp's {} needs head dims that are multiples of {}", name, block));
    }
    auto bench = std::make_unique<StockBench>(shape, type, rows);
    if (!bench->Build()) {
      return OutOfBudget(
          fmt::format("no memory for a {} cache of {} tokens and {} layers", name, shape.depth, shape.layers));
    }
    bench->Fill();
    return std::unique_ptr<AttentionBench>(std::move(bench));
  }
  return InvalidArgument(fmt::format("llama.cpp has no cache type '{}': try f16, q8_0 or q4_0", name));
}

}  // namespace tersekv::llama

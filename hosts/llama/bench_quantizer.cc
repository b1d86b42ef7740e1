// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "ggml-cpu.h"
#include "ggml.h"
#include "tersekv/llama_bench.h"

namespace tersekv::llama {

Result<StockQuantizer> StockQuantizer::Create(const std::string& type) {
  for (const ggml_type candidate : {GGML_TYPE_Q8_0, GGML_TYPE_Q5_0, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL}) {
    if (type != ggml_type_name(candidate)) continue;
    ggml_cpu_init();  // its tables
    StockQuantizer quantizer;
    quantizer.encode_ = ggml_get_type_traits_cpu(candidate)->from_float;
    quantizer.decode_ = ggml_get_type_traits(candidate)->to_float;
    quantizer.block_ = static_cast<int>(ggml_blck_size(candidate));
    quantizer.block_bytes_ = ggml_type_size(candidate);
    return quantizer;
  }
  return InvalidArgument(
      fmt::format("llama.cpp's quantiser '{}' is not measured: known are q8_0, q5_0, q4_0, iq4_nl", type));
}

size_t StockQuantizer::Bytes(size_t values) const { return values / static_cast<size_t>(block_) * block_bytes_; }

}  // namespace tersekv::llama

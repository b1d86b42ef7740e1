// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "src/cache/encoder.h"
#include "tersekv/codec.h"

namespace tersekv {

// VectorCodec::Create over an encoder of one's choice.
Result<std::unique_ptr<VectorCodec>> MakeVectorCodec(const KvSpec& spec, Kv side, int head_dim, int layer, int kv_head,
                                                     RowStats stats, std::unique_ptr<const Encoder> encoder);

}  // namespace tersekv

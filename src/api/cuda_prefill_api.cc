// SPDX-License-Identifier: Apache-2.0
// What stands around an engine's own attention over decompressed rows.
#include <algorithm>

#include "src/api/cuda_convert.h"

namespace {

using tersekv::c::CheckSize;
using tersekv::c::Guard;
using tersekv::c::Null;
using tersekv::c::Report;
using tersekv::c::Stream;
using tersekv::c::ToPool;
using tersekv::c::ToRows;
namespace cuda = tersekv::cuda;

// Rows that may be left out: they have no data then.
tersekv_status ToOptionalRows(const char* name, const tersekv_cuda_rows& from, cuda::Rows* rows) {
  return from.data == nullptr ? TERSEKV_OK : ToRows(name, from, rows);
}

}  // namespace

extern "C" {

tersekv_status tersekv_cuda_decompress_range(const tersekv_cuda_range* range, uint64_t stream) {
  return Guard([&] {
    if (range == nullptr) return Null("range");
    if (auto s = CheckSize("tersekv_cuda_range", range->struct_size, sizeof *range); s != TERSEKV_OK) return s;
    cuda::DecompressParams p;
    if (auto s = ToPool(range->pool, &p.pool); s != TERSEKV_OK) return s;
    if (auto s = ToRows("k", range->k, &p.k); s != TERSEKV_OK) return s;
    if (auto s = ToRows("v", range->v, &p.v); s != TERSEKV_OK) return s;
    p.tokens = range->tokens;
    p.lengths = range->lengths;
    p.block_table = range->block_table;
    p.table_stride = range->table_stride;
    p.batch = range->batch;
    p.first = range->first;
    p.transformed = range->transformed != 0;
    return Report(cuda::Decompress(p, Stream(stream)));
  });
}

tersekv_status tersekv_cuda_transform_queries(const tersekv_cuda_queries* queries, uint64_t stream) {
  return Guard([&] {
    if (queries == nullptr) return Null("queries");
    if (auto s = CheckSize("tersekv_cuda_queries", queries->struct_size, sizeof *queries); s != TERSEKV_OK) return s;
    cuda::TransformParams p;
    if (auto s = ToPool(queries->pool, &p.pool); s != TERSEKV_OK) return s;
    if (auto s = ToRows("q", queries->q, &p.q); s != TERSEKV_OK) return s;
    if (auto s = ToRows("out", queries->out, &p.out); s != TERSEKV_OK) return s;
    p.bias = queries->bias;
    p.batch = queries->batch;
    p.heads = queries->heads;
    p.q_len = queries->q_len;
    p.scale = queries->scale;
    return Report(cuda::TransformQueries(p, Stream(stream)));
  });
}

tersekv_status tersekv_cuda_merge(const tersekv_cuda_parts* parts, uint64_t stream) {
  return Guard([&] {
    if (parts == nullptr) return Null("parts");
    if (auto s = CheckSize("tersekv_cuda_parts", parts->struct_size, sizeof *parts); s != TERSEKV_OK) return s;
    cuda::MergeParams p;
    if (auto s = ToPool(parts->pool, &p.pool); s != TERSEKV_OK) return s;
    if (auto s = ToOptionalRows("own", parts->own, &p.own); s != TERSEKV_OK) return s;
    if (auto s = ToOptionalRows("out", parts->out, &p.out); s != TERSEKV_OK) return s;
    p.batch = parts->batch;
    p.heads = parts->heads;
    p.q_len = parts->q_len;
    if (auto s = ToRows("part", parts->part, &p.part); s != TERSEKV_OK) return s;
    p.count = parts->count;
    if (p.count > 0 && (parts->rows == nullptr || parts->rows_lse == nullptr)) return Null("rows or rows_lse");
    for (int i = 0; i < std::min(p.count, cuda::MergeParams::kMostParts); ++i) {
      p.parts[i] = {parts->rows[i], parts->rows_lse[i]};
    }
    p.resume = parts->resume != 0;
    p.state = parts->state;
    p.state_lse = parts->state_lse;
    p.bias = parts->bias;
    p.own_lse = parts->own_lse;
    p.lse = parts->lse;
    return Report(cuda::Merge(p, Stream(stream)));
  });
}

}  // extern "C"

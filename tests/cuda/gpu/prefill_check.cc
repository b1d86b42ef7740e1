// SPDX-License-Identifier: Apache-2.0
// Prefill over a packed history as an engine does it: transformed queries, ranges of rows, attention of somebody else
// (here in double precision), merge; against double precision over what the CPU decodes. In fp32 and bf16.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/base/half.h"
#include "tests/cuda/gpu/checks.h"
#include "tests/cuda/gpu/decoder.h"

namespace tersekv::gpu {
namespace {

// Values on the device as fp32 or bf16; the host's copy is what the device has.
struct Array {
  bool wide;
  DeviceArray<float> f;
  DeviceArray<uint16_t> h;

  Array(size_t n, bool in_fp32) : wide(in_fp32) {
    if (wide) {
      f = DeviceArray<float>(n);
    } else {
      h = DeviceArray<uint16_t>(n);
    }
  }
  Array(std::vector<float>* values, bool in_fp32) : Array(values->size(), in_fp32) {
    std::vector<uint16_t> bits;
    for (float& v : *values) {
      if (!wide) v = BF16ToF32(bits.emplace_back(F32ToBF16(v)));
    }
    if (wide) {
      f.Upload(*values);
    } else {
      h.Upload(bits);
    }
  }
  std::vector<float> Read() const {
    if (wide) return f.Download();
    std::vector<float> out;
    for (const uint16_t v : h.Download()) out.push_back(BF16ToF32(v));
    return out;
  }
  cuda::Rows Rows(int tokens, int heads, int d) const {
    const int64_t token = int64_t{heads} * d;
    return {wide ? static_cast<void*>(f.get()) : h.get(), wide ? cuda::Type::kF32 : cuda::Type::kBF16, tokens * token,
            token, d};
  }
};

struct Sizes {
  size_t batch, q_len, heads, kv_heads, d;
  size_t Row(size_t b, size_t t, size_t head) const { return (b * q_len + t) * heads + head; }
  size_t Lse(size_t b, size_t t, size_t head) const { return (b * heads + head) * q_len + t; }
};

// One row of q over keys [tokens][kv_heads][d] of one sequence, of which it sees `seen`. out: [d]; returns the lse.
double Attend(const Sizes& s, const float* q, const float* k, const float* v, size_t kv_head, size_t seen, double scale,
              std::vector<double>* out) {
  std::vector<double> logits;
  double top = -INFINITY, sum = 0;
  for (size_t t = 0; t < seen; ++t) {
    double x = 0;
    const float* key = k + (t * s.kv_heads + kv_head) * s.d;
    for (size_t c = 0; c < s.d; ++c) x += static_cast<double>(q[c]) * static_cast<double>(key[c]);
    logits.push_back(x * scale);
    top = std::max(top, logits.back());
  }
  out->assign(s.d, 0.0);
  if (seen == 0) return -INFINITY;
  for (size_t t = 0; t < seen; ++t) {
    const double p = std::exp(logits[t] - top);
    sum += p;
    const float* value = v + (t * s.kv_heads + kv_head) * s.d;
    for (size_t c = 0; c < s.d; ++c) (*out)[c] += p * static_cast<double>(value[c]);
  }
  for (double& x : *out) x /= sum;
  return top + std::log(sum);
}

struct Result {
  Array rows;
  DeviceArray<float> lse;
};

// Attention of all rows over keys of `tokens` places each; seen(b, t): how many of them.
template <class Seen>
Result AttendAll(const Sizes& s, const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                 size_t tokens, Seen seen, double scale, bool wide) {
  std::vector<float> rows(s.batch * s.q_len * s.heads * s.d), lse(s.batch * s.q_len * s.heads);
  std::vector<double> out;
  for (size_t b = 0; b < s.batch; ++b) {
    const size_t at = b * tokens * s.kv_heads * s.d;
    for (size_t t = 0; t < s.q_len; ++t) {
      for (size_t head = 0; head < s.heads; ++head) {
        const size_t row = s.Row(b, t, head);
        const double sum =
            Attend(s, &q[row * s.d], &k[at], &v[at], head / (s.heads / s.kv_heads), seen(b, t), scale, &out);
        lse[s.Lse(b, t, head)] = static_cast<float>(sum);
        for (size_t c = 0; c < s.d; ++c) rows[row * s.d + c] = seen(b, t) > 0 ? static_cast<float>(out[c]) : NAN;
      }
    }
  }
  Array array(&rows, wide);
  return {std::move(array), DeviceArray<float>(lse)};
}

double worst = 0;

void Case(const HistoryShape& shape, int group, int q_len, int tile, bool wide) {
  const History h(shape);
  const Sizes s{shape.lengths.size(), static_cast<size_t>(q_len), static_cast<size_t>(shape.kv_heads * group),
                static_cast<size_t>(shape.kv_heads), static_cast<size_t>(shape.d)};
  const int heads = static_cast<int>(s.heads), batch = static_cast<int>(s.batch);
  const double scale = 1.5 / std::sqrt(static_cast<double>(s.d));
  Random random(shape.seed + 5);
  const auto gaussian = [&](size_t n) {
    std::vector<float> v(n);
    for (float& x : v) x = random.Gaussian();
    return v;
  };
  std::vector<float> q = gaussian(s.batch * s.q_len * s.heads * s.d),
                     own_k = gaussian(s.batch * s.q_len * s.kv_heads * s.d), own_v = gaussian(own_k.size());
  const Array device_q(&q, wide), device_own_k(&own_k, wide), device_own_v(&own_v, wide);  // rounds the host's
  const Array transformed(q.size(), wide);
  const DeviceArray<float> bias(s.batch * s.q_len * s.heads);
  cuda::TransformParams tp;
  tp.pool = h.pool();
  tp.q = device_q.Rows(q_len, heads, shape.d);
  tp.out = transformed.Rows(q_len, heads, shape.d);
  tp.bias = bias.get();
  tp.batch = batch, tp.heads = heads, tp.q_len = q_len;
  tp.scale = static_cast<float>(scale);
  Ok(cuda::TransformQueries(tp, nullptr));
  Cuda(cudaDeviceSynchronize());
  const std::vector<float> tq = transformed.Read();

  std::vector<Result> parts;
  const int longest = *std::max_element(shape.lengths.begin(), shape.lengths.end());
  for (int first = 0; first < longest; first += tile) {
    const size_t n = s.batch * static_cast<size_t>(tile) * s.kv_heads * s.d;
    const Array k(n, wide), v(n, wide);
    cuda::DecompressParams p;
    p.pool = h.pool();
    p.k = k.Rows(tile, shape.kv_heads, shape.d), p.v = v.Rows(tile, shape.kv_heads, shape.d);
    p.lengths = h.lengths(), p.block_table = h.table(), p.table_stride = h.table_stride();
    p.batch = batch, p.first = first, p.tokens = tile;
    p.transformed = true;
    Ok(cuda::Decompress(p, nullptr));
    Cuda(cudaDeviceSynchronize());
    const auto seen = [&](size_t b, size_t) {
      return static_cast<size_t>(std::clamp(shape.lengths[b] - first, 0, tile));
    };
    parts.push_back(AttendAll(s, tq, k.Read(), v.Read(), static_cast<size_t>(tile), seen, scale, wide));
  }
  const Result own = AttendAll(
      s, q, own_k, own_v, s.q_len, [](size_t, size_t t) { return t + 1; }, scale, wide);

  cuda::MergeParams m;
  m.pool = h.pool();
  m.batch = batch, m.heads = heads, m.q_len = q_len;
  m.part = transformed.Rows(q_len, heads, shape.d);
  m.bias = bias.get();
  const Array out(q.size(), wide);
  const DeviceArray<float> lse(s.batch * s.q_len * s.heads), state(q.size()), state_lse(lse.size());
  m.state = state.get(), m.state_lse = state_lse.get();
  for (size_t i = 0; i < parts.size(); ++i) {  // two at a time into the state, the rest into the output
    m.parts[m.count++] = {parts[i].rows.Rows(q_len, heads, shape.d).data, parts[i].lse.get()};
    if (m.count < 2 || i + 1 == parts.size()) continue;
    Ok(cuda::Merge(m, nullptr));
    m.count = 0;
    m.resume = true;
  }
  m.own = own.rows.Rows(q_len, heads, shape.d);
  m.own_lse = own.lse.get();
  m.out = out.Rows(q_len, heads, shape.d);
  m.lse = lse.get();
  Ok(cuda::Merge(m, nullptr));
  Cuda(cudaDeviceSynchronize());

  const std::vector<float> got = out.Read(), got_lse = lse.Download();
  std::vector<double> want;
  std::vector<float> row;
  const double bound = wide ? 2e-5 : 1e-2;
  for (size_t b = 0; b < s.batch; ++b) {
    const size_t length = static_cast<size_t>(shape.lengths[b]), width = s.kv_heads * s.d;
    std::vector<float> k(length * width), v(length * width);
    for (size_t head = 0; head < s.kv_heads; ++head) {
      Decoder keys(h, static_cast<int>(head), Kv::kK), values(h, static_cast<int>(head), Kv::kV);
      for (size_t t = 0; t < length; ++t) {
        const int64_t slot = h.Slot(static_cast<int>(b), static_cast<int>(t));
        keys.Decode(slot, false, &row);
        std::copy(row.begin(), row.end(), &k[t * width + head * s.d]);
        values.Decode(slot, false, &row);
        std::copy(row.begin(), row.end(), &v[t * width + head * s.d]);
      }
    }
    const auto own_rows = [&](const std::vector<float>& from) {
      const auto at = from.begin() + static_cast<std::ptrdiff_t>(b * s.q_len * width);
      return std::vector<float>(at, at + static_cast<std::ptrdiff_t>(s.q_len * width));
    };
    for (const float x : own_rows(own_k)) k.push_back(x);
    for (const float x : own_rows(own_v)) v.push_back(x);
    double error = 0, norm = 0;
    for (size_t t = 0; t < s.q_len; ++t) {
      for (size_t head = 0; head < s.heads; ++head) {
        const size_t at = s.Row(b, t, head) * s.d;
        const double sum =
            Attend(s, &q[at], k.data(), v.data(), head / static_cast<size_t>(group), length + t + 1, scale, &want);
        for (size_t c = 0; c < s.d; ++c) {
          const double e = static_cast<double>(got[at + c]) - want[c];
          error += e * e, norm += want[c] * want[c];
        }
        const double l = static_cast<double>(got_lse[s.Lse(b, t, head)]);
        GPU_EXPECT(std::fabs(l - sum) < (wide ? 1e-4 : 5e-2), "prefill lse %g, want %g", l, sum);
      }
    }
    const double relative = std::sqrt(error / norm);
    if (wide) worst = std::max(worst, relative);
    GPU_EXPECT(relative <= bound, "prefill k%dv%d d %d group %d sequence of %zu: error %.2e", shape.k_bits,
               shape.v_bits, shape.d, group, length, relative);
  }
}

void CheckRefused() {
  HistoryShape shape;
  shape.lengths = {20};
  const History h(shape);
  const auto refused = [&](auto change, const char* text) {
    cuda::MergeParams m;
    m.pool = h.pool();
    m.batch = 1, m.heads = shape.kv_heads;
    change(&m);
    const std::string message = cuda::Merge(m, nullptr).message();
    GPU_EXPECT(message.find(text) != std::string::npos, "'%s' is not in '%s'", text, message.c_str());
  };
  refused([](cuda::MergeParams* m) { m->count = 17; }, "17 parts");
  refused([](cuda::MergeParams* m) { m->count = 1; }, "parts: rows");
  refused([](cuda::MergeParams*) {}, "a state to go on with");
  refused([](cuda::MergeParams* m) { m->heads = 3; }, "no multiple");
}

}  // namespace

void CheckPrefill(bool small) {
  CheckRefused();
  int cases = 0;
  const int widths[][2] = {{4, 4}, {3, 3}, {2, 8}, {8, 2}, {6, 5}, {5, 6}};
  for (const int d : {64, 128, 192, 256}) {
    for (int i = 0; i < (small ? 2 : 6); ++i) {
      HistoryShape shape;
      shape.k_bits = widths[i][0], shape.v_bits = widths[i][1];
      shape.d = d;
      shape.seed = static_cast<uint64_t>(70 + 10 * d + i);
      shape.stats = i % 3 != 2;
      shape.page_tokens = i % 2 == 0 ? 64 : 16;
      shape.lengths = {small ? 37 : 301, 0, small ? 16 : 90};
      Case(shape, i % 2 == 0 ? 4 : 1, small ? 2 : 5, small ? 16 : 64, i % 2 == 0);
      Case(shape, 2, 3, 48, i % 2 != 0);
      cases += 2;
    }
  }
  HistoryShape raw;
  raw.k_bits = raw.v_bits = cuda::kRawBits;
  raw.lengths = {50, 20};
  Case(raw, 2, 3, 32, true);
  std::printf("prefill: %d cases, worst relative error in fp32 %.1e\n", cases + 1, worst);
}

}  // namespace tersekv::gpu

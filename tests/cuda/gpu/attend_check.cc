// SPDX-License-Identifier: Apache-2.0
// Attention against double precision over the stored values, fed the query as it is rounded on the device.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "src/base/half.h"
#include "src/transform/hadamard.h"
#include "src/transform/rotation.h"
#include "tests/cuda/gpu/attend_case.h"
#include "tests/cuda/gpu/checks.h"

namespace tersekv::gpu {
namespace {

// H v or H^T v, unnormalised.
void Transform(std::vector<double>* v, bool transposed) {
  const size_t p = static_cast<size_t>(PaleyOrder(static_cast<int>(v->size()))), inner = v->size() / p;
  for (size_t stride = 1; stride < inner; stride *= 2) {
    for (size_t i = 0; i < v->size(); ++i) {
      if ((i & stride) != 0) continue;
      const double x = (*v)[i], y = (*v)[i + stride];
      (*v)[i] = x + y;
      (*v)[i + stride] = x - y;
    }
  }
  if (p == 1) return;
  const std::vector<double> from = *v;
  const float* matrix = PaleyMatrix(static_cast<int>(p));
  for (size_t i = 0; i < v->size(); ++i) {
    const size_t r = i / inner;
    (*v)[i] = 0;
    for (size_t c = 0; c < p; ++c) {
      (*v)[i] += static_cast<double>(matrix[transposed ? c * p + r : r * p + c]) * from[c * inner + i % inner];
    }
  }
}

// Rounded to f16 or bf16, or to integers, times a power of two, as the device does it.
std::vector<double> RoundQuery(const std::vector<float>& q, bool bf16, bool integers) {
  std::vector<double> out(q.size(), 0.0);
  float largest = 0;
  for (const float v : q) largest = std::max(largest, std::fabs(v));
  if (largest == 0) return out;
  const float up = std::ldexp(1.0f, 13 - std::ilogb(largest));
  for (size_t c = 0; c < q.size(); ++c) {
    const float rounded = bf16       ? BF16ToF32(F32ToBF16(q[c] * up))
                          : integers ? std::nearbyint(q[c] * up)
                                     : F16ToF32(F32ToF16(q[c] * up));
    out[c] = static_cast<double>(rounded) / static_cast<double>(up);
  }
  return out;
}

// The query in rotated space, rounded, and <q, mean>.
std::vector<double> RotatedQuery(const History& h, int kv_head, std::vector<float> q, double* mean_product) {
  const HistoryShape& s = h.shape();
  const size_t d = static_cast<size_t>(s.d), at = static_cast<size_t>(kv_head) * d;
  *mean_product = 0;
  if (h.pool().block.scaled()) {
    const RotationOp rotation(RotationKind::kHadamard, h.pool().seed, h.pool().layer, kv_head, false, s.d);
    for (size_t c = 0; c < d && !h.k_mean.empty(); ++c) {
      *mean_product += static_cast<double>(q[c]) * static_cast<double>(h.k_mean[at + c]);
      q[c] *= h.k_scale[at + c];
    }
    std::vector<float> scratch(d);
    rotation.Apply(q.data(), scratch.data());
  }
  return RoundQuery(q, !h.pool().block.scaled() && s.bf16, h.pool().block.scaled() && s.k_bits <= 3);
}

// A value in the packed values' space: R S^-1 v, without the mean.
std::vector<double> ToValueSpace(const History& h, int kv_head, const std::vector<double>& v) {
  const size_t d = v.size(), at = static_cast<size_t>(kv_head) * d;
  const RotationOp rotation(RotationKind::kHadamard, h.pool().seed, h.pool().layer, kv_head, true, h.shape().d);
  std::vector<double> out = v;
  for (size_t i = 0; i < d; ++i) {
    out[i] *= static_cast<double>(rotation.signs()[i]) / std::sqrt(static_cast<double>(d));
    if (!h.v_inv.empty()) out[i] *= static_cast<double>(h.v_inv[at + i]);
  }
  Transform(&out, false);
  return out;
}

// out: [d] of one query row; returns its lse. share: the packed tokens' part of the sum.
double Reference(const AttendCase& c, int b, int token, int head, std::vector<double>* out, double* share) {
  const History& h = *c.history;
  const HistoryShape& s = h.shape();
  const size_t d = static_cast<size_t>(s.d);
  const int group = c.heads / s.kv_heads, kv_head = head / group, length = s.lengths[static_cast<size_t>(b)];
  const int end = length - c.q_len + 1 + token, begin = c.window > 0 ? std::max(0, end - c.window) : 0;
  const float* row =
      c.q.data() + ((static_cast<size_t>(b) * static_cast<size_t>(c.q_len) + static_cast<size_t>(token)) *
                        static_cast<size_t>(c.heads) +
                    static_cast<size_t>(head)) *
                       d;
  double mean_product = 0, scale = 0;
  const int packed_end = h.PackedEnd(b, std::max(end, 0));
  const auto raw = [&](int t) { return s.has_raw && (t < s.sink || t >= packed_end); };
  const std::vector<double> raw_q = RoundQuery(std::vector<float>(row, row + d), s.raw_bf16, false);
  const std::vector<double> q = RotatedQuery(h, kv_head, std::vector<float>(row, row + d), &mean_product);
  std::vector<double> logits, levels;
  double top = c.sinks.empty() ? -1e300 : static_cast<double>(c.sinks[static_cast<size_t>(head)]);
  for (int t = begin; t < end; ++t) {
    double x = 0;
    if (raw(t)) {
      h.ReadRaw(b, kv_head, t, Kv::kK, &levels);
      for (size_t i = 0; i < d; ++i) x += raw_q[i] * levels[i];
      x *= static_cast<double>(c.scale);
    } else {
      h.Read(b, kv_head, t - s.sink, Kv::kK, &levels, &scale);
      for (size_t i = 0; i < d; ++i) x += q[i] * levels[i];
      x = static_cast<double>(c.scale) * (x * scale + mean_product);
    }
    if (c.softcap > 0) x = static_cast<double>(c.softcap) * std::tanh(x / static_cast<double>(c.softcap));
    if (!c.slopes.empty()) x += static_cast<double>(c.slopes[static_cast<size_t>(head)]) * (t - end + 1);
    logits.push_back(x);
    top = std::max(top, x);
  }
  out->assign(d, 0.0);
  double sum = c.sinks.empty() ? 0 : std::exp(static_cast<double>(c.sinks[static_cast<size_t>(head)]) - top);
  double packed = 0;
  std::vector<double> raw_out(d, 0.0);
  *share = 0;
  for (int t = begin; t < end; ++t) {
    const double p = std::exp(logits[static_cast<size_t>(t - begin)] - top);
    if (raw(t)) {
      sum += p;
      h.ReadRaw(b, kv_head, t, Kv::kV, &levels);
      for (size_t i = 0; i < d; ++i) raw_out[i] += p * levels[i];
      continue;
    }
    packed += p;
    h.Read(b, kv_head, t - s.sink, Kv::kV, &levels, &scale);
    for (size_t i = 0; i < d; ++i) (*out)[i] += p * scale * levels[i];
  }
  sum += packed;
  if (sum == 0) return -INFINITY;
  for (double& v : *out) v /= sum;
  for (double& v : raw_out) v /= sum;
  *share = packed / sum;
  if (h.pool().block.scaled() && c.rotate_out) {
    const RotationOp rotation(RotationKind::kHadamard, h.pool().seed, h.pool().layer, kv_head, true, s.d);
    Transform(out, true);
    for (size_t i = 0; i < d; ++i) {
      (*out)[i] *= static_cast<double>(rotation.signs()[i]) / std::sqrt(static_cast<double>(d));
      if (!h.v_scale.empty()) (*out)[i] *= static_cast<double>(h.v_scale[static_cast<size_t>(kv_head) * d + i]);
      if (!h.v_mean.empty())
        (*out)[i] += static_cast<double>(h.v_mean[static_cast<size_t>(kv_head) * d + i]) * packed / sum;
    }
  } else if (s.has_raw) {
    raw_out = ToValueSpace(h, kv_head, raw_out);
  }
  for (size_t i = 0; i < d; ++i) (*out)[i] += raw_out[i];
  return top + std::log(sum);
}

double worst = 0;

void Compare(const AttendCase& c, const std::vector<float>& out, const std::vector<float>& lse) {
  const HistoryShape& s = c.history->shape();
  const size_t d = static_cast<size_t>(s.d);
  const double bound = c.out_type == cuda::Type::kF32 ? 5e-4 : c.out_type == cuda::Type::kF16 ? 7e-4 : 4e-3;
  const std::vector<float> shares = c.l_packed.Download();
  std::vector<double> want;
  for (size_t b = 0; b < s.lengths.size(); ++b) {
    double error = 0, norm = 0;
    for (int t = 0; t < c.q_len; ++t) {
      for (int head = 0; head < c.heads; ++head) {
        const size_t row = (b * static_cast<size_t>(c.q_len) + static_cast<size_t>(t)) * static_cast<size_t>(c.heads) +
                           static_cast<size_t>(head);
        double share = 0;
        const double sum = Reference(c, static_cast<int>(b), t, head, &want, &share);
        GPU_EXPECT(std::fabs(static_cast<double>(shares[row]) - share) < 1e-3,
                   "%s sequence %zu head %d: l_packed %g, want %g", c.Name().c_str(), b, head,
                   static_cast<double>(shares[row]), share);
        for (size_t i = 0; i < d; ++i) {
          const double e = static_cast<double>(out[row * d + i]) - want[i];
          error += e * e;
          norm += want[i] * want[i];
        }
        const double got = static_cast<double>(lse[row]);
        GPU_EXPECT(sum == got || std::fabs(got - sum) < 2e-3 * std::max(1.0, std::fabs(sum) * 0.01),
                   "%s sequence %zu head %d: lse %g, want %g", c.Name().c_str(), b, head, got, sum);
      }
    }
    const double relative = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
    if (c.out_type == cuda::Type::kF32) worst = std::max(worst, relative);
    GPU_EXPECT(relative <= bound, "%s sequence %zu of %d tokens: error %.2e", c.Name().c_str(), b, s.lengths[b],
               relative);
  }
}

}  // namespace

void CheckAttend(bool small, bool raw) {
  Random random(raw ? 17 : 7);
  int cases = 0;
  worst = 0;
  const std::string list = cuda::KernelList();
  for (size_t at = 0; at < list.size();) {
    const size_t space = std::min(list.find(' ', at), list.size());
    const std::string name = list.substr(at, space - at);
    at = space + 1;
    HistoryShape shape;
    if (name[0] == 'k') {
      shape.k_bits = name[1] - '0', shape.v_bits = name[3] - '0';
    } else {
      shape.k_bits = shape.v_bits = cuda::kRawBits;
      shape.bf16 = name[0] == 'b';
    }
    shape.d = std::stoi(name.substr(name.find('-') + 1));
    if (raw && name[0] != 'k') continue;
    shape.has_raw = raw;
    for (int i = 0; i < (small ? 2 : raw ? 20 : 12); ++i) {
      AttendCase c = AttendCase::Make(shape, i, small, &random);
      std::vector<float> out, lse, again, lse_again;
      c.Run(&out, &lse);
      Compare(c, out, lse);
      c.Run(&again, &lse_again);
      GPU_EXPECT(std::memcmp(out.data(), again.data(), out.size() * 4) == 0, "%s: two runs differ", c.Name().c_str());
      ++cases;
    }
  }
  std::printf("attend%s: %d cases, worst relative error %.1e\n", raw ? " with raw tokens" : "", cases, worst);
}

}  // namespace tersekv::gpu

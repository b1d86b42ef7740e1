// SPDX-License-Identifier: Apache-2.0
// Latents: append writes the bytes of the CPU's encoder; attention against double precision over what the CPU decodes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/base/half.h"
#include "src/base/lanes.h"
#include "src/codec/head_codec.h"
#include "src/codec/lloyd_max.h"
#include "src/cuda/latent.h"
#include "src/transform/rotation.h"
#include "tests/cuda/gpu/checks.h"
#include "tests/cuda/gpu/harness.h"

#define TERSEKV_INL_NAMESPACE plain
#include "src/codec/encode-inl.h"

namespace tersekv::gpu {
namespace {

using cuda::kBlockTokens;
using cuda::kLatent;
using cuda::kLatentKey;
using cuda::kRotary;

constexpr size_t kWidth = kLatent, kTurned = kRotary, kKey = kLatentKey;

double worst = 0;
int64_t values = 0;

// Sequences of latents in pages, appended in any order, and what the CPU makes of them.
struct Latents {
  cuda::LatentPool pool;
  std::vector<int> lengths;
  std::vector<int64_t> slots;
  std::vector<float> rows, rotary, mean, scale, inverse;  // as the device reads them; rotary rounded to f16
  std::vector<float> decoded;                             // [tokens, 512]
  int stride = 0;
  DeviceArray<uint8_t> memory;
  DeviceArray<float> stats;
  DeviceArray<int32_t> table, device_lengths;

  Latents(int bits, NormMode norm, bool with_stats, bool shuffled, int page, std::vector<int> sequence_lengths,
          uint64_t seed)
      : lengths(std::move(sequence_lengths)) {
    Random random(seed);
    pool.block = {bits};
    pool.page_tokens = page;
    pool.seed = seed;
    pool.layer = 5;
    Place(&random);
    const size_t tokens = slots.size();
    if (with_stats) {
      for (size_t c = 0; c < kWidth; ++c) {
        mean.push_back(random.Gaussian());
        scale.push_back(std::exp(0.4f * random.Gaussian()));
        inverse.push_back(1.0f / scale.back());
      }
      std::vector<float> all = mean;
      for (const auto* v : {&scale, &inverse}) all.insert(all.end(), v->begin(), v->end());
      stats = DeviceArray<float>(all);
      pool.stats = {stats.get(), stats.get() + kWidth, stats.get() + 2 * kWidth};
    }
    std::vector<uint16_t> device_rows;  // [tokens, 576] in bf16: the latent, then the rotary part
    for (size_t t = 0; t < tokens; ++t) {
      const float loud = t % 23 == 5 ? 0.0f : std::exp(0.7f * random.Gaussian());
      for (size_t c = 0; c < kKey; ++c) {
        const bool packed = c < kWidth;
        float v = random.Gaussian() * (packed ? loud : 1.0f);
        if (packed && with_stats) v = v * scale[c] + mean[c];
        device_rows.push_back(F32ToBF16(v));
        v = BF16ToF32(device_rows.back());
        if (packed) {
          rows.push_back(v);
        } else {
          rotary.push_back(F16ToF32(F32ToF16(v)));
        }
      }
    }
    Append(device_rows, norm, shuffled, &random);
    Compare(norm);
  }

  // Pages in random order, some left over.
  void Place(Random* random) {
    int pages = 0;
    for (const int n : lengths) stride = std::max(stride, (n + pool.page_tokens - 1) / pool.page_tokens);
    for (const int n : lengths) pages += (n + pool.page_tokens - 1) / pool.page_tokens;
    std::vector<int32_t> ids(static_cast<size_t>(pages) + 2);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    for (size_t i = ids.size(); i-- > 1;) {
      std::swap(ids[i], ids[static_cast<size_t>(random->Below(static_cast<int>(i) + 1))]);
    }
    std::vector<int32_t> pages_of(lengths.size() * static_cast<size_t>(stride), 0x40000000);  // read: a wild address
    size_t next = 0;
    for (size_t b = 0; b < lengths.size(); ++b) {
      for (int t = 0; t < lengths[b]; ++t) {
        int32_t& page = pages_of[b * static_cast<size_t>(stride) + static_cast<size_t>(t / pool.page_tokens)];
        if (t % pool.page_tokens == 0) page = ids[next++];
        slots.push_back(static_cast<int64_t>(page) * pool.page_tokens + t % pool.page_tokens);
      }
    }
    memory = DeviceArray<uint8_t>(ids.size() * pool.page_bytes());
    pool.data = memory.get();
    table = DeviceArray<int32_t>(pages_of);
    device_lengths = DeviceArray<int32_t>(std::vector<int32_t>(lengths.begin(), lengths.end()));
  }

  void Append(const std::vector<uint16_t>& device_rows, NormMode norm, bool shuffled, Random* random) {
    std::vector<size_t> order(slots.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t i = order.size(); shuffled && i-- > 1;) {
      std::swap(order[i], order[static_cast<size_t>(random->Below(static_cast<int>(i) + 1))]);
    }
    std::vector<uint16_t> ordered;
    std::vector<int64_t> to;
    for (const size_t i : order) {
      ordered.insert(ordered.end(), device_rows.begin() + static_cast<std::ptrdiff_t>(i * kKey),
                     device_rows.begin() + static_cast<std::ptrdiff_t>((i + 1) * kKey));
      to.push_back(slots[i]);
    }
    const DeviceArray<uint16_t> from(ordered);
    const DeviceArray<int64_t> device_slots(to);
    DeviceArray<int> flag(std::vector<int>{0});
    cuda::LatentAppendParams p;
    p.pool = pool;
    p.norm = norm;
    p.latent = {from.get(), cuda::Type::kBF16, 0, kLatentKey, 0};
    p.rotary = {from.get() + kWidth, cuda::Type::kBF16, 0, kLatentKey, 0};
    p.slots = device_slots.get();
    p.tokens = static_cast<int>(to.size());
    p.not_finite = flag.get();
    Ok(cuda::LatentAppend(p, nullptr));
    Cuda(cudaDeviceSynchronize());
    GPU_EXPECT(flag.Download()[0] == 0, "finite latents were called not finite");
  }

  // Records against the CPU's encoder; then what they decode to.
  void Compare(NormMode norm) {
    const std::vector<uint8_t> bytes = memory.Download();
    const int bits = pool.block.bits;
    const RotationOp rotation(RotationKind::kHadamard, pool.seed, pool.layer, 0, false, kLatent);
    HeadCodec codec;
    codec.d = kLatent, codec.bits = bits, codec.norm = norm, codec.rotation = &rotation;
    codec.sqrt_d = std::sqrt(static_cast<float>(kLatent));
    if (!mean.empty()) codec.mean = mean.data(), codec.inv_scale = inverse.data();
    std::vector<float> scratch(EncodeScratchFloats(kLatent, 1)), row(kWidth);
    std::vector<uint8_t> want(kWidth);
    size_t wrong = 0;
    for (size_t t = 0; t < slots.size(); ++t) {
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(t * kWidth), kWidth, row.begin());
      uint16_t want_scale = 0, got_scale = 0;
      plain::EncodeLanes(ScalarLanes(), codec, row.data(), want.data(), &want_scale, scratch.data());
      const int64_t blocks = pool.page_tokens / kBlockTokens, slot = slots[t];
      const uint8_t* block =
          bytes.data() +
          (slot / pool.page_tokens * blocks + slot % pool.page_tokens / kBlockTokens) * pool.block.bytes();
      const int place = static_cast<int>(slot % kBlockTokens);
      std::memcpy(&got_scale, block + pool.block.scales() + 2 * place, 2);
      wrong += want_scale != got_scale;
      for (int c = 0; c < kLatent; ++c) {
        const cuda::Place at = cuda::PlaceOf(Kv::kK, place, c);
        uint32_t stored = 0;
        cuda::ForEachPiece(bits, Kv::kK, at.unit, at.e, [&](int word, int bit, int width, int shift) {
          uint32_t w;
          std::memcpy(&w, block + at.group * cuda::GroupBytes(bits) + cuda::WordOffset(bits, at.lane, word), 4);
          stored |= (w >> bit & ((1u << width) - 1)) << shift;
        });
        const int code = cuda::CanonicalCode(bits, static_cast<int>(stored));
        wrong += code != want[static_cast<size_t>(c)];
        row[static_cast<size_t>(c)] =
            BF16ToF32(got_scale) * static_cast<float>(LevelsOf(bits).level[static_cast<size_t>(code)]);
      }
      for (int c = 0; c < kRotary; ++c) {
        uint16_t v;
        std::memcpy(&v, block + pool.block.rotary() + 2 * (place * kRotary + c), 2);
        wrong += F16ToF32(v) != rotary[t * kTurned + static_cast<size_t>(c)];
      }
      rotation.ApplyTransposed(row.data(), scratch.data());
      for (size_t c = 0; c < kWidth && !mean.empty(); ++c) row[c] = row[c] * scale[c] + mean[c];
      decoded.insert(decoded.end(), row.begin(), row.end());
      values += kLatentKey;
    }
    GPU_EXPECT(wrong == 0, "latents of %d bits: %zu values are not the CPU's", bits, wrong);
  }
};

void Attend(const Latents& h, int heads, int q_len, cuda::Type type, uint64_t seed) {
  Random random(seed);
  const size_t batch = h.lengths.size(), count = batch * static_cast<size_t>(q_len * heads);
  std::vector<float> q(count * kKey);
  std::vector<uint16_t> q16;
  for (float& v : q) {
    v = random.Gaussian() * 0.3f;
    if (type == cuda::Type::kBF16) v = BF16ToF32(q16.emplace_back(F32ToBF16(v)));
  }
  const bool wide = type == cuda::Type::kF32;
  const DeviceArray<float> q32(wide ? q : std::vector<float>());
  const DeviceArray<uint16_t> q16d(q16);
  DeviceArray<float> out(count * kWidth), lse(count);
  cuda::LatentAttendParams p;
  p.pool = h.pool;
  p.q = {wide ? static_cast<void*>(q32.get()) : q16d.get(), type, int64_t{q_len} * heads * kLatentKey,
         int64_t{heads} * kLatentKey, kLatentKey};
  p.out = {out.get(), cuda::Type::kF32, int64_t{q_len} * heads * kLatent, int64_t{heads} * kLatent, kLatent};
  p.lse = lse.get();
  p.lengths = h.device_lengths.get();
  p.block_table = h.table.get();
  p.table_stride = h.stride;
  p.batch = static_cast<int>(batch), p.heads = heads, p.q_len = q_len;
  p.scale = 1.0f / std::sqrt(192.0f);
  size_t bytes = 0;
  Ok(cuda::LatentWorkspaceBytes(p, &bytes));
  const DeviceArray<uint8_t> workspace(bytes);
  p.workspace = workspace.get();
  Ok(cuda::LatentAttend(p, nullptr));
  Cuda(cudaDeviceSynchronize());
  const std::vector<float> got = out.Download(), got_lse = lse.Download();
  Ok(cuda::LatentAttend(p, nullptr));
  Cuda(cudaDeviceSynchronize());
  const std::vector<float> again = out.Download();
  GPU_EXPECT(std::memcmp(again.data(), got.data(), 4 * got.size()) == 0, "two runs over latents differ");

  size_t start = 0;
  std::vector<double> want(kWidth), logits;
  for (size_t b = 0; b < batch; start += static_cast<size_t>(h.lengths[b++])) {
    double error = 0, norm = 0;
    for (int t = 0; t < q_len; ++t) {
      for (int head = 0; head < heads; ++head) {
        const size_t row = (b * static_cast<size_t>(q_len) + static_cast<size_t>(t)) * static_cast<size_t>(heads) +
                           static_cast<size_t>(head);
        const size_t seen = static_cast<size_t>(std::max(0, h.lengths[b] - q_len + 1 + t));
        const float* query = &q[row * kKey];
        logits.assign(seen, 0.0);
        double top = -INFINITY, sum = 0;
        for (size_t i = 0; i < seen; ++i) {
          for (size_t c = 0; c < kKey; ++c) {
            const float key =
                c < kWidth ? h.decoded[(start + i) * kWidth + c] : h.rotary[(start + i) * kTurned + c - kWidth];
            logits[i] += static_cast<double>(query[c]) * static_cast<double>(key);
          }
          logits[i] *= static_cast<double>(p.scale);
          top = std::max(top, logits[i]);
        }
        std::fill(want.begin(), want.end(), 0.0);
        for (size_t i = 0; i < seen; ++i) {
          const double weight = std::exp(logits[i] - top);
          sum += weight;
          for (size_t c = 0; c < kWidth; ++c)
            want[c] += weight * static_cast<double>(h.decoded[(start + i) * kWidth + c]);
        }
        for (size_t c = 0; c < kWidth; ++c) {
          const double w = sum > 0 ? want[c] / sum : 0.0, e = static_cast<double>(got[row * kWidth + c]) - w;
          error += e * e, norm += w * w;
        }
        const double l = static_cast<double>(got_lse[row]), wanted = seen > 0 ? top + std::log(sum) : -INFINITY;
        GPU_EXPECT(l == wanted || std::fabs(l - wanted) < 2e-3, "latents of sequence %zu: lse %g, want %g", b, l,
                   wanted);
      }
    }
    const double relative = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
    worst = std::max(worst, relative);
    GPU_EXPECT(relative <= 7e-4, "latents of %d bits, %d heads, q_len %d, sequence of %d: error %.2e",
               h.pool.block.bits, heads, q_len, h.lengths[b], relative);
  }
}

void CheckRefused() {
  cuda::LatentAttendParams p;
  p.batch = 1, p.heads = 16;
  p.pool.block = {7};
  size_t bytes = 0;
  GPU_EXPECT(cuda::LatentWorkspaceBytes(p, &bytes).message().find("7 bits") != std::string::npos, "7 bits");
  p.pool.block = {4};
  p.pool.page_tokens = 24;
  GPU_EXPECT(cuda::LatentWorkspaceBytes(p, &bytes).message().find("24 tokens") != std::string::npos, "pages of 24");
  p.pool.page_tokens = 64;
  GPU_EXPECT(cuda::LatentAttend(p, nullptr).message().find("the pool") != std::string::npos, "no pool");
}

}  // namespace

void CheckLatents(bool small) {
  CheckRefused();
  const int widths[] = {4, 8, 2, 3, 5, 6};
  const NormMode norms[] = {NormMode::kUnbiased, NormMode::kLs, NormMode::kMatch, NormMode::kNone};
  for (int i = 0; i < 6; ++i) {
    const uint64_t seed = static_cast<uint64_t>(300 + i);
    const Latents h(widths[i], norms[i % 4], i % 3 != 2, i % 2 == 1, i % 2 == 0 ? 64 : 16,
                    small ? std::vector<int>{70, 0, 3} : std::vector<int>{1100, 0, 1, 333, 64}, seed);
    Attend(h, small ? 5 : 16, 1, cuda::Type::kF32, seed);
    Attend(h, small ? 3 : 24, small ? 2 : 3, cuda::Type::kBF16, seed + 50);
    if (!small && i == 0) Attend(h, 128, 1, cuda::Type::kBF16, seed + 80);
  }
  std::printf("latents: %.1f M values compared with the CPU's encoder, worst relative error %.1e\n",
              static_cast<double>(values) * 1e-6, worst);
}

}  // namespace tersekv::gpu

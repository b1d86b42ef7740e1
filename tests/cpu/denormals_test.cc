// SPDX-License-Identifier: Apache-2.0
// The processor's flag for denormal operands stays clear through attention.
#ifdef __SSE__
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <vector>

#include "tersekv/cache.h"
#include "tests/reference/step_driver.h"

namespace tersekv {
namespace {

// Scratch that keeps what an earlier page left (16-bit integers, denormal as floats) must not be multiplied: each such
// product takes a hundred times as long.
TEST(Attend, NoDenormalProducts) {
  constexpr unsigned kDenormalOperand = 2;
  for (const char* spec : {"k4v4", "k3v3+win=33", "k8v8", "f16", "k4tv4t", "kivi-k4v4", "k4v4+mean=page"}) {
    reference::Model model = reference::MakeModel(spec, {{8, 2, 64, 64}});
    model.config.arithmetic = Arithmetic::kInt16;
    auto cache = reference::MakeCache(model);
    for (int at = 0, n = 0; at < 515; at += n) {
      n = at == 0 ? 512 : 1;
      const std::vector<reference::Token> step = reference::TokenRun(0, at, n);
      ASSERT_TRUE(cache->BeginStep(reference::StepTokens(step)).ok());
      reference::WriteAll(cache.get(), model, step);
      std::vector<float> q, out(static_cast<size_t>(n) * 8 * 64);
      for (const reference::Token& token : step) {
        const std::vector<float> row = model.Q(0, token.content);
        q.insert(q.end(), row.begin(), row.end());
      }
      Queries queries;
      queries.data = q.data();
      queries.out = out.data();
      queries.heads = 8;
      queries.token_stride = queries.out_token_stride = 8 * 64 * sizeof(float);
      queries.head_stride = queries.out_head_stride = 64 * sizeof(float);
      _mm_setcsr(_mm_getcsr() & ~0x3fu);
      cache->Attend(0, model.Params(), queries, 0, 1);
      EXPECT_EQ(_mm_getcsr() & kDenormalOperand, 0u) << spec << ", step of " << n << " at " << at;
      ASSERT_TRUE(cache->EndStep().ok());
    }
  }
}

}  // namespace
}  // namespace tersekv
#endif

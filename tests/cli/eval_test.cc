// SPDX-License-Identifier: Apache-2.0
#include "cli/eval.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "cli/eval_table.h"
#include "cli/evaluation.h"
#include "cli/table.h"

namespace tersekv::cli {
namespace {

std::vector<int32_t> Text(int n) {
  std::vector<int32_t> text(static_cast<size_t>(n));
  std::iota(text.begin(), text.end(), 100);
  return text;
}

TEST(EvalPlan, ContextsFollowEachOtherBehindBos) {
  const auto plan = MakePlan(Text(100), {1}, 16, 24);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->first_scored, 8);
  EXPECT_EQ(plan->contexts, 3);  // 8 scored each
  EXPECT_EQ(plan->scored(), 24);
  const auto second = plan->Context(1);
  ASSERT_EQ(second.size(), 16u);
  EXPECT_EQ(second[0], 1);
  EXPECT_EQ(second[1], 115);
  EXPECT_EQ(second[15], 129);
  for (int64_t pos = 8; pos < 15; ++pos) EXPECT_EQ(plan->Next(1, pos), second[static_cast<size_t>(pos) + 1]);
  EXPECT_EQ(plan->Next(1, 15), 130);  // the text's next token, in the next context
  EXPECT_EQ(plan->Continuation(1, 2), (std::vector<int32_t>{130, 131}));
}

TEST(EvalPlan, WithoutBosAndUpToTheLastToken) {
  const auto plan = MakePlan(Text(33), {}, 16, 1000);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->contexts, 2);
  EXPECT_EQ(plan->Next(1, 15), 132);
  EXPECT_EQ(plan->Continuation(1, 3), (std::vector<int32_t>{132, 100, 101}));  // starts over
  EXPECT_EQ(MakePlan(Text(32), {}, 16, 1000)->contexts, 1);                    // nothing to predict at the end
}

TEST(EvalPlan, TextTooShortNamesBothNumbers) {
  const auto plan = MakePlan(Text(16), {}, 16, 8);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(plan.error().message().find("has 16 tokens"), std::string::npos) << plan.error().message();
  EXPECT_NE(plan.error().message().find("needs 17"), std::string::npos) << plan.error().message();
  EXPECT_FALSE(MakePlan({}, {1}, 16, 8));
}

EvalRow SomeRow() {
  EvalRow row;
  row.spec = "k4v4";
  row.bits_spec = 4.25;
  row.usage.bytes_used = 1000;
  row.usage.bytes_reserved = 1200;
  row.usage.bytes_f16 = 3500;
  row.usage.bits_effective = 4.571;
  row.summary.ppl = 22;
  row.reference_ppl = 20;
  row.tokens = 4096;
  row.context = 2048;
  return row;
}

TEST(EvalTable, ColumnsOfTheContract) {
  const Json json = ToJson(SomeRow());
  std::vector<std::string> names;
  for (const auto& [name, value] : json.items()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"spec",
                                             "bits_spec",
                                             "bits_effective",
                                             "kv_bytes_used",
                                             "kv_bytes_reserved",
                                             "kv_bytes_f16",
                                             "ratio",
                                             "ppl",
                                             "dppl",
                                             "kl_mean",
                                             "kl_median",
                                             "kl_p99",
                                             "kl_max",
                                             "top1",
                                             "first_divergence",
                                             "decode_tps",
                                             "prefill_tps",
                                             "tokens",
                                             "context",
                                             "prefill"}));
  EXPECT_DOUBLE_EQ(json["ratio"].get<double>(), 3.5);
  EXPECT_NEAR(json["dppl"].get<double>(), 0.1, 1e-12);
  EXPECT_EQ(json["prefill"], "decode");
}

TEST(EvalTable, CsvAndText) {
  const std::string csv = ToCsv({SomeRow(), SomeRow()});
  EXPECT_EQ(csv.find("spec,bits_spec,"), 0u);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), ','), 3 * 19);
  EXPECT_NE(csv.find("\nk4v4,4.25,4.571,1000,"), std::string::npos) << csv;
  EXPECT_NE(ToText({SomeRow()}).find("+10.00%"), std::string::npos);
}

TEST(Table, Aligns) { EXPECT_EQ(FormatTable({{"a", "long"}, {"bcd", "1"}}), "a    long\nbcd     1\n"); }

TEST(CheckMemory, NamesNeedAndRemedy) {
  EXPECT_TRUE(CheckMemoryFrom(100, 1000, 2).ok());
  const Status status = CheckMemoryFrom(2e9, 1e9, 11);
  EXPECT_EQ(status.code(), StatusCode::kOutOfBudget);
  EXPECT_NE(status.message().find("11 caches need 1.86 GiB"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("--ubatch"), std::string::npos);
}

}  // namespace
}  // namespace tersekv::cli

// SPDX-License-Identifier: Apache-2.0
// States that no cache has made are refused with what is wrong, and change nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tersekv/cache.h"
#include "tests/reference/step_driver.h"

namespace tersekv {
namespace {

using reference::Model;
using reference::RunStep;
using reference::Token;
using reference::TokenRun;
using ::testing::HasSubstr;

class States : public ::testing::Test {
 protected:
  // Places 0 to 9 without a token, then tokens at 10, 11, ...
  States() : model_(reference::MakeModel("k4v4+sink=4+win=20", {{2, 1, 32, 32}})) {
    cache_ = reference::MakeCache(model_);
    (void)RunStep(cache_.get(), model_, TokenRun(0, 0, 300));
    EXPECT_TRUE(cache_->RemoveRange(0, 0, 10).ok());
    state_ = cache_->State(0).value();
  }
  // What Restore says of it.
  std::string Refusal(const SequenceState& state) {
    auto other = reference::MakeCache(model_);
    const Status status = other->Restore(0, state);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_EQ(other->Usage().bytes_used, 0u);
    return status.message();
  }

  Model model_;
  std::unique_ptr<KvCache> cache_;
  SequenceState state_;
};

TEST_F(States, PlacesWithoutATokenHaveThePositionBeforeThem) {
  ASSERT_EQ(state_.positions[0], ~0);
  ASSERT_EQ(state_.positions[9], ~0);
  ASSERT_EQ(state_.positions[10], 10);
  auto other = reference::MakeCache(model_);
  ASSERT_TRUE(other->Restore(0, state_).ok());
  for (const int32_t wrong : {~1, ~10, ~INT32_MAX}) {
    SequenceState state = state_;
    state.positions[0] = wrong;
    EXPECT_THAT(Refusal(state), testing::AllOf(HasSubstr("place 0 holds no token"), HasSubstr("not 0")));
  }
  SequenceState state = state_;
  state.positions[50] = ~51;
  EXPECT_THAT(Refusal(state), HasSubstr("place 50 holds no token and position 51, not 49"));
  state.positions[50] = ~48;
  EXPECT_THAT(Refusal(state), HasSubstr("place 50 holds no token and position 48, not 49"));
  state.positions[50] = 49;
  EXPECT_THAT(Refusal(state), HasSubstr("position 49 at place 50 does not follow 49"));
}

TEST_F(States, PositionsEndWhereAnotherOneFollows) {
  SequenceState state = state_;
  state.positions.back() = INT32_MAX;
  EXPECT_THAT(Refusal(state), HasSubstr("position 2147483647 is above 2147483646"));
  state.positions.back() = kMaxPosition;
  auto other = reference::MakeCache(model_);
  ASSERT_TRUE(other->Restore(0, state).ok());
  const StepToken token = {0, INT32_MAX};
  const Status status = other->BeginStep({&token, 1});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("the largest is 2147483646"));
}

// The last positions under a window: nothing overflows.
TEST_F(States, TheLastPositionsAreAttended) {
  model_.config.windows = {30};
  auto cache = reference::MakeCache(model_);
  ASSERT_EQ(RunStep(cache.get(), model_, TokenRun(0, kMaxPosition - 299, 300)).size(), 1u);
  EXPECT_EQ(cache->LastPosition(0), kMaxPosition);
  EXPECT_GT(cache->FirstPosition(0), kMaxPosition - 150) << "pages behind the window were given back";
  EXPECT_TRUE(cache->RemoveRange(0, kMaxPosition, -1).ok());
  (void)RunStep(cache.get(), model_, {Token{0, kMaxPosition, 5}});
  EXPECT_EQ(cache->Shift(0, 0, -1, 1, {}).code(), StatusCode::kInvalidArgument);
}

TEST_F(States, OfOtherLayersOfTheModel) {
  SequenceState state = state_;
  state.first_layer = 1;
  EXPECT_THAT(Refusal(state), testing::AllOf(HasSubstr("from 1 on"), HasSubstr("from 0 on")));
  model_.config.first_layer = 1;
  auto other = reference::MakeCache(model_);
  EXPECT_EQ(other->Restore(0, state_).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(other->Restore(0, state).ok());
  EXPECT_EQ(other->State(0)->first_layer, 1);
}

}  // namespace
}  // namespace tersekv

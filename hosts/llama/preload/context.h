// SPDX-License-Identifier: Apache-2.0
// A context of the program whose history is packed. llama.cpp's own cache is a staging area for the tokens of one call
// and empty in between; positions go on counting. As a llama_context: one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hosts/llama/hook.h"
#include "hosts/llama/model.h"
#include "hosts/llama/preload/abi.h"
#include "hosts/llama/preload/drift.h"
#include "hosts/llama/preload/history.h"
#include "hosts/llama/preload/rotator.h"
#include "hosts/llama/preload/settings.h"
#include "hosts/llama/preload/sizes.h"
#include "hosts/llama/preload/state_codec.h"
#include "hosts/llama/preload/status_board.h"

namespace tersekv::llama::preload {

// One token of a batch as the program made it.
struct BatchToken {
  int32_t pos = 0;
  std::vector<int32_t> seqs;
};

class Context {
 public:
  // The context that llama_init_from_model would have made with these parameters.
  static Result<std::unique_ptr<Context>> Create(std::shared_ptr<const Model> model, const WideContextParams& params,
                                                 const Settings& settings);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();  // frees the llama_context

  llama_context* handle() const { return handle_; }
  llama_memory_t memory() const { return memory_; }
  const Sizes& sizes() const { return sizes_; }
  History& history() { return history_; }
  StateCodec& state() { return state_; }
  const Rotator& rotator() const { return rotator_; }

  // The return codes of llama_decode. run: the engine's own call, with the same tokens in the same order.
  int Decode(std::span<const BatchToken> batch, const std::function<int()>& run);
  void Clear(bool data);
  // Positions can be shifted. As in llama.cpp not where windowed layers have lost some of what would be shifted.
  bool can_shift() const { return rotator_.can_shift() && history_.cache().config().windows.empty(); }
  void SetCausal(bool causal) { causal_ = causal; }
  // Something was left half done: no more decoding, no more states.
  void Break() { broken_ = true; }
  bool broken() const { return broken_; }

  Watch* watch() const { return watch_.get(); }
  // Under the watch's lock.
  ContextReport Report() const;

 private:
  Context(std::shared_ptr<const Model> model, const Sizes& sizes, std::unique_ptr<KvCache> cache, HostMode mode,
          int threads, const Settings& settings);
  Status Try();
  int Run(std::span<const BatchToken> batch, const std::function<int()>& run);
  int Check(std::span<const BatchToken> batch) const;
  void Introduce(const Settings& settings) const;

  std::shared_ptr<const Model> model_;
  Sizes sizes_;
  History history_;
  HostMode mode_;
  DriftProbe drift_;
  Hook hook_;
  Rotator rotator_;
  StateCodec state_;
  llama_context* handle_ = nullptr;
  llama_memory_t memory_ = nullptr;
  bool causal_ = true, broken_ = false;
  int id_;  // in this process, from 1 on
  Activity activity_;
  double attention_before_ = 0;  // the trial's
  std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
};

}  // namespace tersekv::llama::preload

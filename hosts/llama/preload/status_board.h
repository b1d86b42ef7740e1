// SPDX-License-Identifier: Apache-2.0
// The packed contexts of this process as its status port sees them (TERSEKV_STATUS_PORT). Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "hosts/llama/preload/http_server.h"
#include "hosts/llama/preload/settings.h"
#include "hosts/llama/preload/status_report.h"

namespace tersekv::llama::preload {

class Context;

// Between a context, which one thread uses at a time, and whoever asks about it.
struct Watch {
  std::recursive_timed_mutex mutex;  // held by every call on the context
  int depth = 0;                     // of calls: the engine or the program may make one inside another
  Context* context = nullptr;        // null: it is gone
  std::mutex last_mutex;
  ContextReport last;  // for who cannot wait for a long call
  std::chrono::steady_clock::time_point last_time;
};

// A call on the context.
class Busy {
 public:
  explicit Busy(Watch* watch) : lock_(watch->mutex), watch_(watch) { ++watch_->depth; }
  ~Busy() { --watch_->depth; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  bool outermost() const { return watch_->depth == 1; }

 private:
  std::lock_guard<std::recursive_timed_mutex> lock_;
  Watch* watch_;
};

class StatusBoard {
 public:
  static StatusBoard& Get();

  // Opens the port when the settings ask for it and it is not open; what it is, or why not, is said.
  Status Open(const Settings& settings);
  bool is_open() const { return open_; }

  void Add(std::shared_ptr<Watch> watch);            // of a context that is whole
  void Remove(const std::shared_ptr<Watch>& watch);  // its context ends
  // After a call on the context, by its thread: renews `last` once a second.
  void Called(Watch* watch) noexcept;

  std::atomic<int64_t> packed = 0, passed = 0, refused = 0;  // contexts

 private:
  HttpAnswer Answer(std::string_view path);
  ProcessReport Report();

  std::mutex mutex_;
  std::atomic<bool> open_ = false;
  std::chrono::steady_clock::time_point start_;
  std::vector<std::shared_ptr<Watch>> watches_;
};

}  // namespace tersekv::llama::preload

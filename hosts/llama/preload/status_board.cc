// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/status_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "hosts/llama/preload/context.h"
#include "hosts/llama/preload/say.h"
#include "hosts/llama/preload/status_page.h"

namespace tersekv::llama::preload {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::milliseconds(50);  // for a context that is in the middle of a call
constexpr auto kRenewal = std::chrono::seconds(1);

}  // namespace

StatusBoard& StatusBoard::Get() {
  static StatusBoard& board = *new StatusBoard;  // never destroyed: its server runs until the process ends
  return board;
}

Status StatusBoard::Open(const Settings& settings) {
  const std::lock_guard lock(mutex_);
  if (settings.status_port < 0 || open_) return {};
  const Result<int> port = StartHttpServer(settings.status_host, settings.status_port,
                                           [this](std::string_view path) { return Answer(path); });
  if (!port) return port.error();
  start_ = Clock::now();
  open_ = true;
  const bool six = settings.status_host.find(':') != std::string::npos;
  Say(1, "status at http://{}{}{}:{}/ (/metrics, /status.json)", six ? "[" : "", settings.status_host, six ? "]" : "",
      *port);
  return {};
}

void StatusBoard::Add(std::shared_ptr<Watch> watch) {
  const std::lock_guard lock(mutex_);
  watches_.push_back(std::move(watch));
}

void StatusBoard::Remove(const std::shared_ptr<Watch>& watch) {
  {
    const std::lock_guard lock(mutex_);
    std::erase(watches_, watch);
  }
  const std::lock_guard lock(watch->mutex);  // who reads it now comes to an end
  watch->context = nullptr;
}

void StatusBoard::Called(Watch* watch) noexcept {
  if (!open_) return;
  const Clock::time_point now = Clock::now();
  if (now - watch->last_time < kRenewal) return;
  watch->last_time = now;
  try {
    ContextReport report = watch->context->Report();
    const std::lock_guard lock(watch->last_mutex);
    watch->last = std::move(report);
  } catch (const std::exception&) {
    // The call itself went well, and `last` is an older one.
  }
}

ProcessReport StatusBoard::Report() {
  std::vector<std::shared_ptr<Watch>> watches;
  ProcessReport report;
  {
    const std::lock_guard lock(mutex_);
    watches = watches_;
    report.uptime_seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  }
  report.contexts_packed = packed;
  report.contexts_passed = passed;
  report.contexts_refused = refused;
  for (const auto& watch : watches) {
    if (std::unique_lock busy(watch->mutex, kPatience); busy.owns_lock()) {
      if (watch->context == nullptr) continue;
      ContextReport fresh = watch->context->Report();
      const std::lock_guard lock(watch->last_mutex);
      watch->last = std::move(fresh);
    }
    const std::lock_guard lock(watch->last_mutex);
    if (watch->last.id != 0) report.contexts.push_back(watch->last);
  }
  return report;
}

HttpAnswer StatusBoard::Answer(std::string_view path) {
  if (path == "/") return {200, "text/html; charset=utf-8", std::string(StatusPage())};
  if (path == "/metrics") return {200, "text/plain; version=0.0.4; charset=utf-8", ToPrometheus(Report())};
  if (path == "/status.json") return {200, "application/json", ToJson(Report())};
  return {404, "text/plain", "there are /, /metrics and /status.json\n"};
}

}  // namespace tersekv::llama::preload

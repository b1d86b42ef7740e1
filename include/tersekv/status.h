// SPDX-License-Identifier: Apache-2.0
// Errors of the library: nothing is thrown across it. A message names the value, the limit and the remedy.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace tersekv {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument = 1,  // the caller passed something that can never work
  kNotFound = 2,         // a file, layer, sequence or package that is not there
  kOutOfBudget = 3,      // the byte budget is used up; the message says how many tokens fit
  kUnsupported = 4,      // valid, but this version or this machine cannot do it
  kDataLoss = 5,         // a file or input is damaged (truncated, checksum, not finite)
  kInternal = 6,         // an invariant of ours or of the engine broke
};

// The field's name of a code, e.g. "OUT_OF_BUDGET".
const char* StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string ToString() const;  // "OUT_OF_BUDGET: ..."

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
inline Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status OutOfBudget(std::string m) { return {StatusCode::kOutOfBudget, std::move(m)}; }
inline Status Unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
inline Status DataLoss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

// A value or a Status that is not ok; names of std::expected.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}       // NOLINT(google-explicit-constructor)
  Result(Status error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool has_value() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return has_value(); }
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  const Status& error() const { return std::get<Status>(state_); }
  Status status() const { return has_value() ? Status() : error(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace tersekv

// SPDX-License-Identifier: Apache-2.0
#include "tersekv/status.h"

namespace tersekv {

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kOutOfBudget:
      return "OUT_OF_BUDGET";
    case StatusCode::kUnsupported:
      return "UNSUPPORTED";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
    case StatusCode::kInternal:
      return "INTERNAL";
  }
  return "UNKNOWN";
}

std::string Status::ToString() const { return ok() ? "OK" : std::string(StatusCodeName(code_)) + ": " + message_; }

}  // namespace tersekv

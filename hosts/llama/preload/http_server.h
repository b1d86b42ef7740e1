// SPDX-License-Identifier: Apache-2.0
// A few small pages over HTTP/1.1, from a thread of its own inside another program.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tersekv/status.h"

namespace tersekv::llama::preload {

struct HttpAnswer {
  int code = 200;
  std::string type, body;
};

// Answers GET and HEAD at an address ("127.0.0.1", "::1") until the process ends; port 0: a free one. Returns the port.
// answer: by path, without what follows '?'; on the server's thread, one call at a time. The thread takes no signals.
// kUnsupported: this build has no server; kInvalidArgument: no address, or the port cannot be had.
Result<int> StartHttpServer(const std::string& host, int port, std::function<HttpAnswer(std::string_view)> answer);

}  // namespace tersekv::llama::preload

// SPDX-License-Identifier: Apache-2.0
// In place of http_server.cc where Boost's headers are not.
#include "hosts/llama/preload/http_server.h"

namespace tersekv::llama::preload {

Result<int> StartHttpServer(const std::string&, int, std::function<HttpAnswer(std::string_view)>) {
  return Unsupported("this build has no status port: build it where Boost's headers are (libboost-dev)");
}

}  // namespace tersekv::llama::preload

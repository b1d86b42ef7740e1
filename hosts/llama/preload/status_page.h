// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace tersekv::llama::preload {

std::string_view StatusPage();  // status_page.html

}  // namespace tersekv::llama::preload

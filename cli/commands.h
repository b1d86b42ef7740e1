// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tersekv::cli {

// Parses the command line and runs the command; the exit code.
int Main(int argc, const char* const* argv);

}  // namespace tersekv::cli

// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>
#include <new>

#include "cli/commands.h"

int main(int argc, char** argv) {
  try {
    return tersekv::cli::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("error: out of memory: use a smaller --ctx, a smaller --ubatch or fewer specs\n", stderr);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
  }
  return 1;
}

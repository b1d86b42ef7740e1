// SPDX-License-Identifier: Apache-2.0
// Other programs: where they are, and whether something can be put in front of their libllama.
#pragma once

#include <string>

#include "tersekv/status.h"

namespace tersekv::cli {

struct Program {
  std::string path;
  std::string loader;  // the dynamic loader that it names; empty: a script
};

// A program by name or path as the shell finds it. kNotFound; kUnsupported: linked statically, of another machine, or
// no program.
Result<Program> FindDynamicProgram(const std::string& name);

enum class Libllama {
  kShared,  // among the libraries that the loader will bring
  kInside,  // linked into the program or into one of them: calls cannot be intercepted
  kNone,    // not at start; it may load one later, or run another program
};
// Asks the program's own loader, which runs nothing of the program.
Libllama FindLibllama(const Program& program);

}  // namespace tersekv::cli

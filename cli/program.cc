// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace tersekv::cli {
namespace {

namespace fs = std::filesystem;

#if defined(__x86_64__)
constexpr int kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr int kMachine = EM_AARCH64;
#elif defined(__riscv)
constexpr int kMachine = EM_RISCV;
#elif defined(__powerpc64__)
constexpr int kMachine = EM_PPC64;
#elif defined(__s390x__)
constexpr int kMachine = EM_S390;
#else
constexpr int kMachine = EM_NONE;
#endif
constexpr unsigned char kOrder = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;

std::string MachineName(int machine) {
  switch (machine) {
    case EM_386:
      return "x86 (32 bits)";
    case EM_X86_64:
      return "x86-64";
    case EM_ARM:
      return "arm (32 bits)";
    case EM_AARCH64:
      return "aarch64";
    case EM_RISCV:
      return "riscv";
    case EM_PPC64:
      return "ppc64";
    case EM_S390:
      return "s390";
    default:
      return fmt::format("ELF number {}", machine);
  }
}

// In the file's own order of bytes.
int MachineOf(const Elf64_Ehdr& head) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&head.e_machine);
  return head.e_ident[EI_DATA] == ELFDATA2MSB ? bytes[0] << 8 | bytes[1] : bytes[1] << 8 | bytes[0];
}

Result<Program> Describe(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  Elf64_Ehdr head = {};
  in.read(reinterpret_cast<char*>(&head), sizeof head);
  if (in.gcount() >= 2 && std::memcmp(&head, "#!", 2) == 0) return Program{path, ""};
  if (in.gcount() != sizeof head || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) {
    return Unsupported(fmt::format("{} is no program", path));
  }
  const int machine = MachineOf(head);
  if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_ident[EI_DATA] != kOrder ||
      (kMachine != EM_NONE && machine != kMachine)) {
    return Unsupported(fmt::format("{} is a program for {}, this is a machine of {}", path, MachineName(machine),
                                   MachineName(kMachine)));
  }
  for (int i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr part = {};
    in.seekg(static_cast<std::streamoff>(head.e_phoff + static_cast<uint64_t>(i) * head.e_phentsize));
    in.read(reinterpret_cast<char*>(&part), sizeof part);
    if (!in || part.p_type != PT_INTERP || part.p_filesz > 4096) continue;
    std::string loader(part.p_filesz, '\0');
    in.seekg(static_cast<std::streamoff>(part.p_offset));
    in.read(loader.data(), static_cast<std::streamsize>(loader.size()));
    if (in) return Program{path, loader.c_str()};
  }
  return Unsupported(
      fmt::format("{} is linked statically, so that nothing can be put in front of its llama.cpp: use a build with "
                  "shared libraries (BUILD_SHARED_LIBS=ON)",
                  path));
}

// What `loader --list program` prints, "" when it fails.
std::string ListLibraries(const Program& program) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "";
  const pid_t process = fork();
  if (process == 0) {
    dup2(ends[1], STDOUT_FILENO);
    if (const int null = open("/dev/null", O_WRONLY | O_CLOEXEC); null >= 0) dup2(null, STDERR_FILENO);
    unsetenv("LD_PRELOAD");
    execl(program.loader.c_str(), program.loader.c_str(), "--list", program.path.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; process > 0 && (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  return process > 0 && waitpid(process, &status, 0) == process && status == 0 ? text : "";
}

// Whether its code holds llama.cpp's memory classes: type information names them.
bool HoldsLlama(const std::string& path) {
  constexpr std::string_view kNames[] = {"14llama_memory_i", "14llama_kv_cache", "22llama_kv_cache_unified"};
  constexpr size_t kPart = 1 << 20, kOverlap = 64;
  std::ifstream in(path, std::ios::binary);
  std::string part;
  for (;;) {
    const size_t kept = part.size();
    part.resize(kept + kPart);
    in.read(part.data() + kept, kPart);
    part.resize(kept + static_cast<size_t>(in.gcount()));
    for (const std::string_view name : kNames) {
      if (part.find(name) != std::string::npos) return true;
    }
    if (!in) return false;
    part.erase(0, part.size() - kOverlap);
  }
}

bool OfSystem(std::string_view path) { return path.starts_with("/lib") || path.starts_with("/usr/lib"); }

}  // namespace

Result<Program> FindDynamicProgram(const std::string& name) {
  std::vector<std::string> candidates = {name};
  if (name.find('/') == std::string::npos) {
    candidates.clear();
    const char* path = std::getenv("PATH");
    std::stringstream folders(path != nullptr ? path : "");
    for (std::string folder; std::getline(folders, folder, ':');) candidates.push_back(folder + "/" + name);
  }
  for (const std::string& candidate : candidates) {
    std::error_code error;
    if (access(candidate.c_str(), X_OK) == 0 && !fs::is_directory(candidate, error)) return Describe(candidate);
  }
  return NotFound(fmt::format("{} is not in PATH and no program: give its path", name));
}

Libllama FindLibllama(const Program& program) {
  if (program.loader.empty()) return Libllama::kNone;
  std::vector<std::string> files = {program.path};
  std::stringstream lines(ListLibraries(program));
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(" \t"), arrow = line.find(" => ");
    if (begin == std::string::npos) continue;
    if (std::string_view(line).substr(begin).starts_with("libllama.")) return Libllama::kShared;
    if (arrow == std::string::npos) continue;
    const std::string path = line.substr(arrow + 4, line.rfind(" (") - arrow - 4);
    if (!OfSystem(path)) files.push_back(path);
  }
  for (const std::string& file : files) {
    if (HoldsLlama(file)) return Libllama::kInside;
  }
  return Libllama::kNone;
}

}  // namespace tersekv::cli

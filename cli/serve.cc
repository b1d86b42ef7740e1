// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <netdb.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "cli/options.h"
#include "cli/preload.h"

namespace tersekv::cli {
namespace {

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP};
volatile std::sig_atomic_t server_process = 0;

void Forward(int signal) {
  if (server_process > 0) kill(server_process, signal);
}

// Where to ask a server that listens at all addresses.
std::string Reachable(const std::string& host) {
  if (host == "0.0.0.0") return "127.0.0.1";
  return host == "::" ? "::1" : host;
}

std::string InUrl(const std::string& host) { return host.find(':') != std::string::npos ? "[" + host + "]" : host; }

// A socket that is connected to the server, -1 when nobody listens.
int Connect(const std::string& host, int port) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(Reachable(host).c_str(), fmt::format("{}", port).c_str(), &hints, &found) != 0) return -1;
  int s = -1;
  for (const addrinfo* a = found; a != nullptr && s < 0; a = a->ai_next) {
    s = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
    const timeval limit = {2, 0};
    if (s >= 0) setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (s >= 0 && connect(s, a->ai_addr, a->ai_addrlen) != 0) {
      close(s);
      s = -1;
    }
  }
  freeaddrinfo(found);
  return s;
}

// One request for /health; whether it was answered with 200.
bool Healthy(const std::string& host, int port) {
  const int s = Connect(host, port);
  if (s < 0) return false;
  const std::string request = fmt::format("GET /health HTTP/1.0\r\nHost: {}\r\n\r\n", InUrl(Reachable(host)));
  char answer[16] = {};
  const bool healthy = send(s, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()) &&
                       recv(s, answer, 12, MSG_WAITALL) == 12 && std::memcmp(answer + 8, " 200", 4) == 0;
  close(s);
  return healthy;
}

int ExitCode(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

int Serve(const ServeOptions& options) {
  const Result<std::string> program = CheckProgram(options.server);
  if (!program) return Fail(program.error());
  if (access(options.model.c_str(), R_OK) != 0) {
    return Fail(NotFound(fmt::format("model '{}' cannot be read: {}", options.model, std::strerror(errno))));
  }
  if (const int s = Connect(options.host, options.port); s >= 0) {
    close(s);
    return Fail(InvalidArgument(
        fmt::format("something listens at port {} of {} already: choose another --port", options.port, options.host)));
  }
  if (Status status = CheckPreload(options.preload); !status.ok()) return Fail(status);
  ExecOptions exec{options.preload, {*program}};
  // A batch is also what llama.cpp's own staging cache holds.
  const auto add = [&exec](std::initializer_list<std::string> words) {
    exec.command.insert(exec.command.end(), words);
  };
  add({"-m", options.model, "--host", options.host, "--port", std::to_string(options.port)});
  add({"-np", std::to_string(options.slots), "-kvu", "-b", "512", "-ub", "512"});
  if (options.context > 0) add({"-c", std::to_string(options.context)});
  exec.command.insert(exec.command.end(), options.more.begin(), options.more.end());
  // Signals wait until both sides know what to do with them.
  sigset_t passed_on, before;
  sigemptyset(&passed_on);
  for (const int signal : kPassedOn) {
    struct sigaction given {};
    sigaction(signal, nullptr, &given);
    if (given.sa_handler != SIG_IGN) sigaddset(&passed_on, signal);  // else (nohup) the server shall ignore it too
  }
  sigprocmask(SIG_BLOCK, &passed_on, &before);
  const auto handle = [&passed_on](void (*handler)(int)) {
    for (const int signal : kPassedOn) {
      if (sigismember(&passed_on, signal) == 1) std::signal(signal, handler);
    }
  };
  handle(Forward);
  const pid_t self = getpid(), process = fork();
  if (process < 0) return Fail(Internal(fmt::format("no new process: {}", std::strerror(errno))));
  if (process == 0) {
    handle(SIG_DFL);
    setpgid(0, 0);  // a Ctrl-C reaches it once, through us
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != self) _exit(kExitFailure);  // we were killed before that
    sigprocmask(SIG_SETMASK, &before, nullptr);
    _exit(Start(*program, exec));
  }
  server_process = process;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  bool told = false;
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(process, &status, told ? 0 : WNOHANG);
    if (ended == process) return ExitCode(status);
    if (ended < 0 && errno != EINTR) {
      return Fail(Internal(fmt::format("llama-server cannot be waited for: {}", std::strerror(errno))));
    }
    if (told) continue;  // a signal came
    if (Healthy(options.host, options.port)) {
      fmt::print(stderr, "tersekv: serving {} at http://{}:{} (OpenAI clients: /v1)\n", options.model,
                 InUrl(Reachable(options.host)), options.port);
      told = true;
    } else {
      usleep(100 * 1000);
    }
  }
}

}  // namespace tersekv::cli

// SPDX-License-Identifier: Apache-2.0
#include "hosts/llama/preload/http_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/version.hpp>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

namespace tersekv::llama::preload {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Answer = std::function<HttpAnswer(std::string_view)>;

constexpr int kMostConnections = 64;
constexpr auto kIdle = std::chrono::seconds(30);
constexpr unsigned kMostHeaderBytes = 8192;

void CloseOnExec(int fd) { fcntl(fd, F_SETFD, fcntl(fd, F_GETFD) | FD_CLOEXEC); }

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, const Answer* answer, int* open)
      : stream_(std::move(socket)), answer_(answer), open_(open) {
    ++*open_;
  }
  ~Connection() { --*open_; }

  void Read() {
    parser_.emplace();
    parser_->header_limit(kMostHeaderBytes);
    parser_->body_limit(0);
    stream_.expires_after(kIdle);
    http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](beast::error_code error, size_t) {
      if (!error) self->Write();
    });
  }

 private:
  HttpAnswer Ask() const {
    const auto& request = parser_->get();
    if (request.method() != http::verb::get && request.method() != http::verb::head) {
      return {405, "text/plain", "only GET and HEAD\n"};
    }
    const std::string_view target(request.target().data(), request.target().size());
    try {
      return (*answer_)(target.substr(0, target.find('?')));
    } catch (const std::exception& e) {
      return {500, "text/plain", std::string(e.what()) + "\n"};
    }
  }

  void Write() {
    const HttpAnswer answer = Ask();
    const auto& request = parser_->get();
    response_ = {static_cast<http::status>(answer.code), request.version()};
    response_.set(http::field::content_type, answer.type);
    response_.set(http::field::cache_control, "no-store");
    if (answer.code == 405) response_.set(http::field::allow, "GET, HEAD");
    response_.keep_alive(request.keep_alive());
    response_.body() = answer.body;
    response_.prepare_payload();
    if (request.method() == http::verb::head) response_.body().clear();
    http::async_write(stream_, response_, [self = shared_from_this()](beast::error_code error, size_t) {
      if (error) return;
      if (self->response_.keep_alive()) return self->Read();
      beast::error_code ignored;
      self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    });
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMostHeaderBytes};
  boost::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> response_;
  const Answer* answer_;
  int* open_;
};

class Server {
 public:
  explicit Server(Answer answer) : answer_(std::move(answer)) {}

  Status Open(const std::string& host, int port) {
    beast::error_code error;
    const auto address = asio::ip::make_address(host, error);
    if (error) return InvalidArgument(fmt::format("'{}' is not an address: write e.g. 127.0.0.1 or ::1", host));
    const tcp::endpoint place(address, static_cast<unsigned short>(port));
    acceptor_.open(place.protocol(), error);
    if (!error) CloseOnExec(acceptor_.native_handle());
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(place, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return InvalidArgument(fmt::format("port {} of {}: {}", port, host, error.message()));
    return {};
  }
  int port() const { return acceptor_.local_endpoint().port(); }

  void Run() {
    Accept();
    io_.run();
  }

 private:
  void Accept() {
    acceptor_.async_accept([this](beast::error_code error, tcp::socket socket) {
      if (!error) {
        CloseOnExec(socket.native_handle());
        if (open_ < kMostConnections) std::make_shared<Connection>(std::move(socket), &answer_, &open_)->Read();
      }
      Accept();
    });
  }

  Answer answer_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_{io_};
  int open_ = 0;
};

}  // namespace

Result<int> StartHttpServer(const std::string& host, int port, Answer answer) try {
  auto server = std::make_unique<Server>(std::move(answer));
  if (const Status s = server->Open(host, port); !s.ok()) return s;
  const int opened = server->port();
  // Signals are the program's: a new thread blocks what its maker blocks.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([server = server.release()] {
    for (;;) {
      try {
        return server->Run();
      } catch (const std::exception&) {
        // One connection's: the others go on.
      }
    }
  }).detach();  // never destroyed, as the process may end at any time
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return opened;
} catch (const std::exception& e) {
  return Internal(fmt::format("no thread for the status port: {}", e.what()));
}

}  // namespace tersekv::llama::preload

// SPDX-License-Identifier: Apache-2.0
// For programs that run where there is a GPU and nothing else of ours: plain checks, random numbers, device memory.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tersekv/status.h"

namespace tersekv::gpu {

inline int failures = 0;

// The condition, or a line that says what was wrong; the program goes on and fails at its end.
#define GPU_EXPECT(condition, ...)                                \
  do {                                                            \
    if (!(condition)) {                                           \
      ++::tersekv::gpu::failures;                                 \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                   \
      std::printf("\n");                                          \
    }                                                             \
  } while (false)

inline void Cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
inline void Ok(const Status& status) {
  if (status.ok()) return;
  std::printf("%s\n", status.message().c_str());
  std::exit(1);
}

class Random {  // xorshift64*
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint64_t Next() {
    state_ ^= state_ >> 12, state_ ^= state_ << 25, state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Du;
  }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  int Below(int n) { return static_cast<int>(Next() >> 33) % n; }
  float Gaussian() {
    if (spare_ < 1e30f) {
      const float v = spare_;
      spare_ = 1e30f;
      return v;
    }
    const double r = std::sqrt(-2 * std::log(Uniform() + 0x1p-54)), angle = 6.283185307179586 * Uniform();
    spare_ = static_cast<float>(r * std::sin(angle));
    return static_cast<float>(r * std::cos(angle));
  }

 private:
  uint64_t state_;
  float spare_ = 1e30f;
};

template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  // Filled with 0xFF: NaN as floats, -1 as integers.
  explicit DeviceArray(size_t n) : n_(n) {
    Cuda(cudaMalloc(reinterpret_cast<void**>(&data_), n * sizeof(T) + 16));
    Poison();
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { Upload(host); }
  DeviceArray(DeviceArray&& other) noexcept : data_(other.data_), n_(other.n_) { other.data_ = nullptr, other.n_ = 0; }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_), std::swap(n_, other.n_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }

  T* get() const { return data_; }
  size_t size() const { return n_; }
  void Poison() { Cuda(cudaMemset(data_, 0xff, n_ * sizeof(T))); }
  void Upload(const std::vector<T>& host) {
    Cuda(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> Download() const {
    std::vector<T> host(n_);
    Cuda(cudaMemcpy(host.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  T* data_ = nullptr;
  size_t n_ = 0;
};

}  // namespace tersekv::gpu

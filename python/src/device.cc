// SPDX-License-Identifier: Apache-2.0
// Packed pages of one layer on a CUDA device, over the C ABI: addresses, byte strides, dtypes and a stream in.
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "python/src/bind.h"
#include "python/src/status.h"
#include "tersekv/cuda_api.h"

namespace nb = nanobind;

namespace tersekv::python {
namespace {

constexpr int kDescribeBytes = 512;

void CheckC(tersekv_status status) {
  if (status == TERSEKV_OK) return;
  PyErr_SetString(status == TERSEKV_INTERNAL ? PyExc_RuntimeError : PyExc_ValueError, tersekv_last_error());
  throw nb::python_error();
}

template <class T>
T* At(uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// (address, dtype, byte strides of batch, head, token), as TerseLayer describes tensors.
using Described = std::tuple<uintptr_t, int, int64_t, int64_t, int64_t>;

tersekv_cuda_rows RowsOf(const Described& from) {
  const auto& [address, dtype, batch, head, token] = from;
  return {At<void>(address), dtype, batch, token, head};
}

// What the layers of one step share; addresses of device memory.
struct DeviceStep {
  uintptr_t slots = 0, lengths = 0, table = 0, workspace = 0;
  int64_t table_stride = 0;
  int32_t batch = 0, q_len = 0;
};

class DeviceLayer {
 public:
  DeviceLayer(const std::string& spec, int head_dim, int kv_heads, int layer) {
    format_.struct_size = sizeof format_;
    CheckC(tersekv_cuda_format_of(spec.c_str(), head_dim, &format_));
    pool_.struct_size = sizeof pool_;
    pool_.kv_heads = kv_heads;
    pool_.layer = layer;
  }

  size_t page_bytes() const { return tersekv_cuda_page_bytes(&format_, pool_.kv_heads); }
  // (bytes of a block of 16 tokens of one head, first byte of a side's codes, of its scales)
  std::tuple<int, int, int> BlockOffsets(std::string_view side) const {
    tersekv_cuda_block block{};
    block.struct_size = sizeof block;
    CheckC(tersekv_cuda_block_of(&format_, &block));
    return side == "k" ? std::tuple(block.block_bytes, block.k_codes, block.k_scales)
                       : std::tuple(block.block_bytes, block.v_codes, block.v_scales);
  }
  std::vector<int> BitPlaces(std::string_view side) const {
    std::vector<int> places(static_cast<size_t>(16 * format_.head_dim * bits(side)));
    CheckC(tersekv_cuda_bit_places(&format_, side == "k" ? 0 : 1, places.data(), places.size()));
    return places;
  }
  int bits(std::string_view side) const { return side == "k" ? format_.k_bits : format_.v_bits; }
  int page_tokens() const { return format_.page_tokens; }
  void SetRawDtype(int dtype) { format_.raw_dtype = dtype; }
  void SetPages(uintptr_t pages) { pool_.pages = At<void>(pages); }
  void SetStats(const std::array<uintptr_t, 6>& stats) {
    pool_.k_mean = At<const float>(stats[0]);
    pool_.k_scale = At<const float>(stats[1]);
    pool_.k_inv_scale = At<const float>(stats[2]);
    pool_.v_mean = At<const float>(stats[3]);
    pool_.v_scale = At<const float>(stats[4]);
    pool_.v_inv_scale = At<const float>(stats[5]);
  }

  void Append(const Described& k, const Described& v, uintptr_t slots, int tokens, uintptr_t not_finite,
              uint64_t stream) const {
    const tersekv_cuda_pool pool = Pool();
    CheckC(tersekv_cuda_append(Make(pool, k, v, slots, tokens, not_finite), stream));
  }

  void Decompress(const Described& k, const Described& v, uintptr_t slots, int tokens, uint64_t stream) const {
    const tersekv_cuda_pool pool = Pool();
    CheckC(tersekv_cuda_decompress(Make(pool, k, v, slots, tokens, 0), stream));
  }

  size_t WorkspaceBytes(int batch, int heads, int q_len) const {
    const tersekv_cuda_pool pool = Pool();
    tersekv_cuda_attention a{};
    a.struct_size = sizeof a;
    a.pool = &pool;
    a.batch = batch;
    a.heads = heads;
    a.q_len = q_len;
    size_t bytes = 0;
    CheckC(tersekv_cuda_workspace_bytes(&a, &bytes));
    return bytes;
  }

  void Plan(const DeviceStep& step, int heads, int window, uint64_t stream) const {
    const tersekv_cuda_pool pool = Pool();
    tersekv_cuda_attention a = Of(pool, step, heads, window);
    CheckC(tersekv_cuda_plan(&a, stream));
  }

  void Attend(const DeviceStep& step, const Described& q, const Described& out, int heads, float scale, int window,
              float softcap, uintptr_t sinks, uint64_t stream, uintptr_t lse) const {
    const tersekv_cuda_pool pool = Pool();
    tersekv_cuda_attention a = Of(pool, step, heads, window);
    a.q = RowsOf(q);
    a.out = RowsOf(out);
    a.scale = scale;
    a.softcap = softcap;
    a.sinks = At<const float>(sinks);
    a.lse = At<float>(lse);
    CheckC(tersekv_cuda_attend(&a, stream));
  }

  std::string Describe(int heads, int q_len) const {
    std::array<char, kDescribeBytes> text{};
    CheckC(tersekv_cuda_describe(&format_, heads, pool_.kv_heads, q_len, text.data(), text.size()));
    return text.data();
  }

 private:
  tersekv_cuda_pool Pool() const {
    tersekv_cuda_pool pool = pool_;
    pool.format = &format_;
    return pool;
  }

  // Lives until the next call on this thread.
  static const tersekv_cuda_tokens* Make(const tersekv_cuda_pool& pool, const Described& k, const Described& v,
                                         uintptr_t slots, int tokens, uintptr_t not_finite) {
    thread_local tersekv_cuda_tokens t;
    t = {};
    t.struct_size = sizeof t;
    t.pool = &pool;
    t.k = RowsOf(k);
    t.v = RowsOf(v);
    t.slots = At<const int64_t>(slots);
    t.tokens = tokens;
    t.not_finite = At<int32_t>(not_finite);
    return &t;
  }

  static tersekv_cuda_attention Of(const tersekv_cuda_pool& pool, const DeviceStep& step, int heads, int window) {
    tersekv_cuda_attention a{};
    a.struct_size = sizeof a;
    a.pool = &pool;
    a.lengths = At<const int32_t>(step.lengths);
    a.block_table = At<const int32_t>(step.table);
    a.table_stride = step.table_stride;
    a.batch = step.batch;
    a.heads = heads;
    a.q_len = step.q_len;
    a.scale = 1;
    a.window = window;
    a.workspace = At<void>(step.workspace);
    return a;
  }

  tersekv_cuda_format format_{};
  tersekv_cuda_pool pool_{};
};

std::vector<int> StoredCodes(int bits) {
  if (tersekv_cuda_stored_code(bits, 0) < 0) {
    Raise(InvalidArgument("pages hold codes of 2 to 6 and 8 bits, not " + std::to_string(bits)));
  }
  std::vector<int> stored(size_t{1} << bits);
  for (size_t code = 0; code < stored.size(); ++code) {
    stored[code] = tersekv_cuda_stored_code(bits, static_cast<int>(code));
  }
  return stored;
}

}  // namespace

void BindDevice(nb::module_& m) {
  m.def(
      "cuda_kernels", [] { return std::string(tersekv_cuda_kernels()); },
      "Attention kernels of this build, by widths and head_dim; '' without CUDA.");
  m.def("device_stored_codes", &StoredCodes, nb::arg("bits"), "What pages store of each canonical code.");
  nb::class_<DeviceStep>(m, "DeviceStep", "Addresses that the layers of a step share.")
      .def(nb::init<>())
      .def_rw("slots", &DeviceStep::slots)
      .def_rw("lengths", &DeviceStep::lengths)
      .def_rw("table", &DeviceStep::table)
      .def_rw("table_stride", &DeviceStep::table_stride)
      .def_rw("workspace", &DeviceStep::workspace)
      .def_rw("batch", &DeviceStep::batch)
      .def_rw("q_len", &DeviceStep::q_len);
  nb::class_<DeviceLayer>(m, "DeviceLayer",
                          "Packed pages of one layer in device memory of the caller's (tersekv/cuda_api.h). Rows are "
                          "(address, dtype, byte strides of batch, head, token). Launches only.")
      .def(nb::init<const std::string&, int, int, int>(), nb::arg("spec"), nb::arg("head_dim"), nb::arg("kv_heads"),
           nb::arg("layer") = 0)
      .def_prop_ro("page_bytes", &DeviceLayer::page_bytes)
      .def_prop_ro("page_tokens", &DeviceLayer::page_tokens)
      .def("block_offsets", &DeviceLayer::BlockOffsets, nb::arg("side"),
           "(bytes of a block of 16 tokens of a head, first byte of the side's codes, of its scales)")
      .def("bit_places", &DeviceLayer::BitPlaces, nb::arg("side"),
           "By token of a block of 16, channel and bit of the stored code: its bit among the side's codes.")
      .def("bits", &DeviceLayer::bits, nb::arg("side"))
      .def("set_raw_dtype", &DeviceLayer::SetRawDtype, nb::arg("dtype"), "Of raw pages: 1 f16, 2 bf16.")
      .def("set_pages", &DeviceLayer::SetPages, nb::arg("address"))
      .def(
          "set_stats",
          [](DeviceLayer& self, uintptr_t k_mean, uintptr_t k_scale, uintptr_t k_inv_scale, uintptr_t v_mean,
             uintptr_t v_scale, uintptr_t v_inv_scale) {
            self.SetStats({k_mean, k_scale, k_inv_scale, v_mean, v_scale, v_inv_scale});
          },
          nb::arg("k_mean"), nb::arg("k_scale"), nb::arg("k_inv_scale"), nb::arg("v_mean"), nb::arg("v_scale"),
          nb::arg("v_inv_scale"), "Addresses of float32 [kv_heads, head_dim] on the device, or 0.")
      .def("append", &DeviceLayer::Append, nb::arg("k"), nb::arg("v"), nb::arg("slots"), nb::arg("tokens"),
           nb::arg("not_finite"), nb::arg("stream"))
      .def("decompress", &DeviceLayer::Decompress, nb::arg("k"), nb::arg("v"), nb::arg("slots"), nb::arg("tokens"),
           nb::arg("stream"))
      .def("workspace_bytes", &DeviceLayer::WorkspaceBytes, nb::arg("batch"), nb::arg("heads"), nb::arg("q_len"))
      .def("plan", &DeviceLayer::Plan, nb::arg("step"), nb::arg("heads"), nb::arg("window"), nb::arg("stream"))
      .def("attend", &DeviceLayer::Attend, nb::arg("step"), nb::arg("q"), nb::arg("out"), nb::arg("heads"),
           nb::arg("scale"), nb::arg("window"), nb::arg("softcap"), nb::arg("sinks"), nb::arg("stream"),
           nb::arg("lse") = 0, "lse: address of float32 [batch, q_len, heads], or 0.")
      .def("describe", &DeviceLayer::Describe, nb::arg("heads"), nb::arg("q_len"));
}

}  // namespace tersekv::python

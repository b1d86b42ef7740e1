// SPDX-License-Identifier: Apache-2.0
// LayerCache and Memory as Python sees them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "python/src/bind.h"
#include "python/src/layer_cache.h"
#include "python/src/status.h"

namespace nb = nanobind;

namespace tersekv::python {
namespace {

nb::dict UsageOf(PyCache& self) {
  const CacheUsage u = self.Usage();
  nb::dict d;
  d["pages"] = u.pages;
  d["raw_rows"] = u.raw_rows;
  d["stats"] = u.stats;
  d["tables"] = u.tables;
  d["bytes_used"] = u.bytes_used;
  d["bytes_reserved"] = u.bytes_reserved;
  d["scratch"] = u.scratch;
  d["bytes_f16"] = u.bytes_f16;
  d["tokens"] = u.tokens;
  d["tokens_packed"] = u.tokens_packed;
  d["bits_effective"] = u.bits_effective;
  return d;
}

}  // namespace

void BindCache(nb::module_& m) {
  nb::class_<PyMemory>(m, "Memory",
                       "Pages, their budget and scratch of the layers of one model. Caches that share it may be used "
                       "in any threads: calls take turns.")
      .def(nb::init<size_t>(), nb::arg("byte_budget") = 0)
      .def("release_scratch", [](PyMemory& self) {
        const Turn turn(self);
        self.Release();
      });
  nb::class_<PyCache>(m, "LayerCache",
                      "Packed K and V of one layer for any number of sequences. Calls from several threads take turns.")
      .def(
          "__init__",
          [](PyCache* self, std::shared_ptr<PyMemory> memory, std::string_view spec, int heads, int kv_heads,
             int head_dim_k, int head_dim_v, int layer, std::string_view prefill, std::string_view arithmetic,
             std::optional<std::tuple<int, int>> bits, std::optional<std::vector<std::vector<float>>> stats,
             int32_t window, int rollback, bool values_rotated) {
            std::optional<LayerBits> widths;
            if (bits) widths = LayerBits{std::get<0>(*bits), std::get<1>(*bits)};
            std::optional<LayerStats> given;
            if (stats) {
              if (stats->size() != 4) Raise(InvalidArgument("stats are k_mean, k_scale, v_mean, v_scale"));
              given = LayerStats{(*stats)[0], (*stats)[1], (*stats)[2], (*stats)[3]};
            }
            new (self) PyCache(std::move(memory), spec, heads, kv_heads, head_dim_k, head_dim_v, layer, prefill,
                               arithmetic, widths, std::move(given), window, rollback, values_rotated);
          },
          nb::arg("memory"), nb::arg("spec"), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim_k"),
          nb::arg("head_dim_v"), nb::arg("layer") = 0, nb::arg("prefill") = "raw", nb::arg("arithmetic") = "int16",
          nb::arg("bits") = nb::none(), nb::arg("stats") = nb::none(), nb::arg("window") = 0, nb::arg("rollback") = 0,
          nb::arg("values_rotated") = false,
          "window: no query sees more of the newest positions (0: all); pages behind it are given back. rollback: "
          "newest tokens that can be truncated as if they had never been there. values_rotated: values come rotated, "
          "and outputs stay so.")
      .def(
          "step",
          [](PyCache& self, const std::vector<Row>& rows, int32_t tokens, const Tensor& k, const Tensor& v,
             const std::optional<Tensor>& q, const std::optional<Tensor>& out, float scale, int32_t window,
             float softcap, std::vector<float> sinks, bool undo) {
            if (q.has_value() != out.has_value()) Raise(InvalidArgument("a query needs an output and the reverse"));
            self.Step(rows, tokens, k, v, q, out, {scale, window, softcap, std::move(sinks)}, undo);
          },
          nb::arg("rows"), nb::arg("tokens"), nb::arg("k"), nb::arg("v"), nb::arg("q") = nb::none(),
          nb::arg("out") = nb::none(), nb::arg("scale") = 1.0f, nb::arg("window") = 0, nb::arg("softcap") = 0.0f,
          nb::arg("sinks") = std::vector<float>(), nb::arg("undo") = false,
          "Appends tokens and, with q and out, attends. rows: (sequence, first token, tokens, position) a batch row; "
          "arrays: (address, dtype, batch stride, head stride, token stride) in bytes.")
      .def("read", &PyCache::Read, nb::arg("side"), nb::arg("sequences"), nb::arg("low"), nb::arg("tokens"),
           nb::arg("out"))
      .def("length", &PyCache::Length, nb::arg("sequence"))
      .def("truncate", &PyCache::Truncate, nb::arg("sequence"), nb::arg("tokens"))
      .def("crop", &PyCache::Crop, nb::arg("sequence"), nb::arg("position"),
           "Removes the tokens from this position on.")
      .def("fork", &PyCache::Fork, nb::arg("source"), nb::arg("to"))
      .def("remove", &PyCache::Remove, nb::arg("sequence"))
      .def("undo", &PyCache::Undo, nb::arg("sequences"),
           "Back to before the first step with undo=True since settle, exactly.")
      .def("settle", &PyCache::Settle, nb::arg("sequences"), "Steps so far are not undone any more.")
      .def("usage", &UsageOf)
      .def("formula_bytes", &PyCache::Formula, nb::arg("tokens"),
           "Bytes of a sequence of so many tokens by the formula of docs/formats.md.")
      .def("set_heads", &PyCache::SetHeads, nb::arg("heads"), "Query heads that later steps attend with.")
      .def_prop_ro("heads", &PyCache::heads);
}

}  // namespace tersekv::python

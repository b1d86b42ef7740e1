// SPDX-License-Identifier: Apache-2.0
// VectorCodec over rows of any strides and dtype.
#include "tersekv/codec.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>

#include "python/src/arrays.h"
#include "python/src/bind.h"
#include "python/src/pool.h"
#include "python/src/status.h"

namespace nb = nanobind;

namespace tersekv::python {
namespace {

constexpr size_t kBlockRows = 512;  // rows that a worker takes at a time

struct PyCodec {
  std::unique_ptr<VectorCodec> codec;
  Kv side = Kv::kK;
  size_t scale_bytes = 0;
};

Kv SideOf(std::string_view side) {
  if (side != "k" && side != "v") Raise(InvalidArgument("side is 'k' or 'v', not '" + std::string(side) + "'"));
  return side == "k" ? Kv::kK : Kv::kV;
}

// Blocks of rows go to workers in turn; work(block begin, rows, fp32 buffer) may fail.
template <class F>
Status ForBlocks(const VectorCodec& codec, size_t rows, F&& work) {
  const size_t record_rows = codec.record_rows(), d = static_cast<size_t>(codec.head_dim());
  const size_t block = std::max<size_t>(kBlockRows / record_rows, 1) * record_rows;
  const size_t blocks = (rows + block - 1) / block;
  Status failure;
  std::mutex mutex;
  RunOnThreads(static_cast<int>(std::min<size_t>(blocks, 1024)), [&](int worker, int workers) {
    std::vector<float> buffer(std::min(block, rows) * d);
    for (size_t b = static_cast<size_t>(worker); b < blocks; b += static_cast<size_t>(workers)) {
      const size_t begin = b * block;
      if (Status s = work(begin, std::min(block, rows - begin), buffer.data()); !s.ok()) {
        const std::lock_guard lock(mutex);
        if (failure.ok()) failure = s;
        return;
      }
    }
  });
  return failure;
}

void Encode(const PyCodec& self, uintptr_t address, int dtype, const std::vector<int64_t>& sizes,
            const std::vector<int64_t>& strides, uintptr_t records) {
  const RowArray rows = Take(RowArray::Make(address, dtype, sizes, strides));
  const VectorCodec& codec = *self.codec;
  const size_t per_record = codec.record_rows(), d = static_cast<size_t>(codec.head_dim());
  if (rows.rows() % per_record != 0) {
    Raise(InvalidArgument(std::to_string(rows.rows()) + " rows: this codec takes multiples of " +
                          std::to_string(per_record) + " (a page)"));
  }
  uint8_t* out = reinterpret_cast<uint8_t*>(records);  // NOLINT(performance-no-int-to-ptr)
  Status status;
  {
    const nb::gil_scoped_release release;
    status = ForBlocks(codec, rows.rows(), [&](size_t begin, size_t n, float* buffer) {
      for (size_t i = 0; i < n; ++i) LoadRow(rows.Row(begin + i), rows.dtype(), d, buffer + i * d);
      return codec.Encode(buffer, n, out + begin / per_record * codec.record_bytes());
    });
  }
  Check(status);
}

void Decode(const PyCodec& self, uintptr_t records, uintptr_t address, int dtype, const std::vector<int64_t>& sizes,
            const std::vector<int64_t>& strides) {
  const RowArray rows = Take(RowArray::Make(address, dtype, sizes, strides));
  const VectorCodec& codec = *self.codec;
  const size_t per_record = codec.record_rows(), d = static_cast<size_t>(codec.head_dim());
  const uint8_t* in = reinterpret_cast<const uint8_t*>(records);  // NOLINT(performance-no-int-to-ptr)
  Status status;
  {
    const nb::gil_scoped_release release;
    status = ForBlocks(codec, rows.rows(), [&](size_t begin, size_t n, float* buffer) {
      codec.Decode(in + begin / per_record * codec.record_bytes(), n, buffer);
      for (size_t i = 0; i < n; ++i) StoreRow(buffer + i * d, rows.dtype(), d, rows.Row(begin + i));
      return Status();
    });
  }
  Check(status);
}

void InnerProducts(const PyCodec& self, uintptr_t records, size_t n, const std::vector<float>& query, uintptr_t out) {
  if (query.size() != static_cast<size_t>(self.codec->head_dim())) {
    Raise(InvalidArgument("the query has " + std::to_string(query.size()) + " values, head_dim is " +
                          std::to_string(self.codec->head_dim())));
  }
  const nb::gil_scoped_release release;
  self.codec->InnerProducts(reinterpret_cast<const uint8_t*>(records), n, query.data(),  // NOLINT
                            reinterpret_cast<float*>(out));                              // NOLINT
}

}  // namespace

void BindCodec(nb::module_& m) {
  nb::class_<PyCodec>(m, "VectorCodec", "Canonical records of K or V rows (docs/formats.md).")
      .def(
          "__init__",
          [](PyCodec* self, std::string_view spec, std::string_view side, int head_dim, int layer, int kv_head,
             std::vector<float> mean, std::vector<float> scale) {
            const Kv kv = SideOf(side);
            const KvSpec parsed = Take(ParseSpec(spec));
            auto codec =
                Take(VectorCodec::Create(parsed, kv, head_dim, layer, kv_head, {std::move(mean), std::move(scale)}));
            new (self) PyCodec{std::move(codec), kv, RecordScaleBytes(parsed, kv)};
          },
          nb::arg("spec"), nb::arg("side"), nb::arg("head_dim"), nb::arg("layer") = 0, nb::arg("kv_head") = 0,
          nb::arg("mean") = std::vector<float>(), nb::arg("scale") = std::vector<float>())
      .def_prop_ro("head_dim", [](const PyCodec& self) { return self.codec->head_dim(); })
      .def_prop_ro("record_rows", [](const PyCodec& self) { return self.codec->record_rows(); })
      .def_prop_ro("record_bytes", [](const PyCodec& self) { return self.codec->record_bytes(); })
      .def_ro("scale_bytes", &PyCodec::scale_bytes, "Bytes at a record's end that are the vector's bf16 scale: 2 or 0.")
      .def("encode", &Encode, nb::arg("address"), nb::arg("dtype"), nb::arg("sizes"), nb::arg("strides"),
           nb::arg("records"), "Rows (sizes and byte strides of the leading dimensions) -> records at an address.")
      .def("decode", &Decode, nb::arg("records"), nb::arg("address"), nb::arg("dtype"), nb::arg("sizes"),
           nb::arg("strides"))
      .def("inner_products", &InnerProducts, nb::arg("records"), nb::arg("n"), nb::arg("query"), nb::arg("out"),
           "<query, row> for n rows as fp32 at `out`, none of them restored.");
  m.def(
      "measure_row_stats",
      [](std::string_view spec, std::string_view side, int head_dim, uintptr_t address, int dtype,
         const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
        const RowArray rows = Take(RowArray::Make(address, dtype, sizes, strides));
        const size_t d = static_cast<size_t>(head_dim);
        std::vector<float> values(rows.rows() * d);
        for (size_t i = 0; i < rows.rows(); ++i) LoadRow(rows.Row(i), rows.dtype(), d, values.data() + i * d);
        const RowStats stats =
            MeasureRowStats(Take(ParseSpec(spec)), SideOf(side), head_dim, values.data(), rows.rows());
        return nb::make_tuple(stats.mean, stats.scale);
      },
      nb::arg("spec"), nb::arg("side"), nb::arg("head_dim"), nb::arg("address"), nb::arg("dtype"), nb::arg("sizes"),
      nb::arg("strides"), "(mean, scale) that the spec takes of these rows; empty lists where it takes none.");
}

}  // namespace tersekv::python

// SPDX-License-Identifier: Apache-2.0
#include "src/io/safetensors.h"

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/io/crc64.h"

namespace tersekv {
namespace {

using Json = nlohmann::ordered_json;
static_assert(std::endian::native == std::endian::little, "numbers are stored as they lie in memory");

constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignment = 8;  // of the data, by spaces at the end of the header
constexpr char kMetadata[] = "__metadata__";
constexpr char kChecksum[] = "checksum";
// Quotes within JSON strings are escaped, so that this text stands in a header once: before the digits.
constexpr std::string_view kChecksumField = "\"checksum\":\"";
constexpr size_t kChecksumDigits = 16;

std::string NoDigits() { return std::string(kChecksumDigits, '0'); }

// Of all bytes, with the digits themselves as zeros.
std::string ChecksumOf(std::string_view bytes, size_t digits_at) {
  uint64_t crc = Crc64(bytes.substr(0, digits_at));
  crc = Crc64(NoDigits(), crc);
  return fmt::format("{:016x}", Crc64(bytes.substr(digits_at + kChecksumDigits), crc));
}

size_t Bytes(const NamedTensor& tensor) { return tensor.values.size() * sizeof(float); }

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  Result<SafeTensors> Read() {
    if (Status s = ReadHeader(); !s.ok()) return s;
    if (Status s = CheckSum(); !s.ok()) return s;
    SafeTensors file;
    if (Status s = ReadMetadata(&file); !s.ok()) return s;
    size_t at = 0;
    for (const auto& [key, value] : header_.items()) {
      if (key == kMetadata) continue;
      NamedTensor tensor;
      tensor.name = key;
      if (Status s = ReadTensor(value, &at, &tensor); !s.ok()) return s;
      file.tensors.push_back(std::move(tensor));
    }
    if (at != data_.size()) return Fault("data", data_.size(), fmt::format("the {} bytes of its tensors", at));
    return file;
  }

 private:
  template <class T>
  Status Fault(const std::string& field, const T& found, const std::string& expected) const {
    return DataLoss(
        fmt::format("'{}': {} is {}, expected {}; the file is damaged: make it again", name_, field, found, expected));
  }

  Status ReadHeader() {
    if (bytes_.size() < kLengthBytes) {
      return Fault("the size in bytes", bytes_.size(), fmt::format("at least {}", kLengthBytes));
    }
    uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), kLengthBytes);
    const size_t rest = bytes_.size() - kLengthBytes;
    if (length > rest) return Fault("the header length", length, fmt::format("at most {}", rest));
    text_ = bytes_.substr(kLengthBytes, length);
    data_ = bytes_.substr(kLengthBytes + length);
    header_ = Json::parse(text_, nullptr, false);
    if (!header_.is_object()) return Fault("the header", "no JSON object", "one");
    return {};
  }

  Status CheckSum() const {
    const size_t at = text_.find(kChecksumField);
    if (at == std::string_view::npos || text_.size() - at < kChecksumField.size() + kChecksumDigits) {
      return Fault("the field 'checksum'", "not there", fmt::format("{} hexadecimal digits", kChecksumDigits));
    }
    const size_t digits_at = kLengthBytes + at + kChecksumField.size();
    const std::string_view found = bytes_.substr(digits_at, kChecksumDigits);
    const std::string expected = ChecksumOf(bytes_, digits_at);
    return found == expected ? Status() : Fault("the field 'checksum'", found, expected);
  }

  Status ReadMetadata(SafeTensors* file) const {
    const auto it = header_.find(kMetadata);
    if (it == header_.end() || !it->is_object()) return Fault(kMetadata, "not there", "an object");
    for (const auto& [key, value] : it->items()) {
      if (!value.is_string()) return Fault(fmt::format("the field '{}'", key), value.type_name(), "a string");
      if (key != kChecksum) file->metadata[key] = value.get<std::string>();
    }
    return {};
  }

  // at: where the tensor's data must begin; moved behind it.
  Status ReadTensor(const Json& entry, size_t* at, NamedTensor* tensor) const {
    const std::string field = fmt::format("tensor '{}'", tensor->name);
    if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
      return Fault(field, "incomplete", "dtype, shape and data_offsets");
    }
    if (entry["dtype"] != "F32") return Fault(field + ".dtype", entry["dtype"].type_name(), "\"F32\"");
    const size_t limit = (data_.size() - *at) / sizeof(float);
    size_t values = 1;
    if (!entry["shape"].is_array()) return Fault(field + ".shape", entry["shape"].type_name(), "an array");
    for (const Json& n : entry["shape"]) {
      if (!n.is_number_unsigned()) return Fault(field + ".shape", n.type_name(), "whole numbers");
      const uint64_t extent = n.get<uint64_t>();
      if (extent > limit || values * extent > limit) {
        return Fault(field + ".shape", "too large", fmt::format("at most the {} values left in the file", limit));
      }
      values *= extent;
      tensor->shape.push_back(static_cast<int64_t>(extent));
    }
    const size_t end = *at + values * sizeof(float);
    if (entry["data_offsets"] != Json::array({*at, end})) {
      return Fault(field + ".data_offsets", "something else", fmt::format("[{}, {}]", *at, end));
    }
    tensor->values.resize(values);
    if (values != 0) std::memcpy(tensor->values.data(), data_.data() + *at, values * sizeof(float));
    *at = end;
    return {};
  }

  std::string_view bytes_;
  const std::string& name_;
  std::string_view text_, data_;
  Json header_;
};

}  // namespace

Result<SafeTensors> ReadSafeTensors(std::string_view bytes, const std::string& name) {
  return Reader(bytes, name).Read();
}

bool IsUtf8(std::string_view text) {
  const Json json = std::string(text);
  const std::string dumped = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  const Json back = Json::parse(dumped, nullptr, false);
  return back.is_string() && back.get_ref<const std::string&>() == text;
}

std::string WriteSafeTensors(const SafeTensors& file) {
  Json header;
  Json& metadata = header[kMetadata] = Json::object();
  metadata[kChecksum] = NoDigits();
  for (const auto& [key, value] : file.metadata) metadata[key] = value;
  size_t at = 0;
  for (const NamedTensor& tensor : file.tensors) {
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, at + Bytes(tensor)}}};
    at += Bytes(tensor);
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), kLengthBytes);
  bytes += text;
  bytes.reserve(bytes.size() + at);
  for (const NamedTensor& tensor : file.tensors) {
    bytes.append(reinterpret_cast<const char*>(tensor.values.data()), Bytes(tensor));
  }
  const size_t digits_at = kLengthBytes + text.find(kChecksumField) + kChecksumField.size();
  bytes.replace(digits_at, kChecksumDigits, ChecksumOf(bytes, digits_at));
  return bytes;
}

}  // namespace tersekv

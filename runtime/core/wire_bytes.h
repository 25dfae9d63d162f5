// Writing and reading the bytes of a message: numbers little endian, texts and lists with their
// length before them. A reader trusts no length.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/recycler.h"
#include "runtime/base/status.h"

namespace horon {

using WireBytes = RecycledVector<std::byte>;

class WireWriter {
 public:
  template <typename T>
  void Number(T value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
  }
  // Of a small number few bytes: seven bits in each, lowest first, and whether there are more.
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) Number(static_cast<uint8_t>(value | 0x80));
    Number(static_cast<uint8_t>(value));
  }
  void Text(const std::string& text) {
    Number(static_cast<uint32_t>(text.size()));
    const auto* from = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), from, from + text.size());
  }
  template <typename T, typename Allocator>
  void Numbers(const std::vector<T, Allocator>& values) {
    Number(static_cast<uint32_t>(values.size()));
    const auto* from = reinterpret_cast<const std::byte*>(values.data());
    bytes_.insert(bytes_.end(), from, from + values.size() * sizeof(T));
  }
  void Bytes(std::span<const std::byte> bytes) {
    Number(static_cast<uint32_t>(bytes.size()));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  WireBytes Take() { return std::move(bytes_); }

 private:
  WireBytes bytes_;
};

// After the first error every read gives zeros; the caller looks at ok() once, at the end.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T Number() {
    T value{};
    if (!Has(sizeof(T))) return value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = Number<uint8_t>();
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    Fail("a number has too many bytes");
    return 0;
  }
  std::string Text() {
    const auto size = Number<uint32_t>();
    if (!Has(size)) return {};
    std::string text(reinterpret_cast<const char*>(bytes_.data() + at_), size);
    at_ += size;
    return text;
  }
  WireBytes Bytes() {
    const auto size = Number<uint32_t>();
    if (!Has(size)) return {};
    const auto from = bytes_.begin() + static_cast<std::ptrdiff_t>(at_);
    at_ += size;
    return {from, from + size};
  }
  bool AtEnd() const { return at_ == bytes_.size(); }  // as it is after an error
  template <typename T, typename Values = std::vector<T>>
  Values Numbers() {
    const auto size = Number<uint32_t>();
    Values values;
    if (!Has(uint64_t{size} * sizeof(T))) return values;
    values.resize(size);
    if (size > 0) std::memcpy(values.data(), bytes_.data() + at_, size * sizeof(T));
    at_ += size * sizeof(T);
    return values;
  }
  // A count of items that take at least `least` bytes each: never more than the bytes left can
  // hold.
  uint32_t Count(size_t least) {
    const auto count = Number<uint32_t>();
    if (!Has(uint64_t{count} * least)) return 0;
    return count;
  }
  void Fail(const char* what) {
    if (wrong_ == nullptr) wrong_ = what;
    at_ = bytes_.size();
  }
  Status Finish() {
    if (wrong_ == nullptr && at_ != bytes_.size()) Fail("it has bytes after its end");
    if (wrong_ == nullptr) return Status::Ok();
    return Status::Internal(std::string("a control message is broken: ") + wrong_);
  }

 private:
  bool Has(uint64_t n) {
    if (wrong_ == nullptr && n <= bytes_.size() - at_) return true;
    Fail("it ends too early");
    return false;
  }
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  const char* wrong_ = nullptr;
};

}  // namespace horon

// What a framework says of one of its tensors in one call in C: where it lies, its type and shape.
// DLPack's exchange API (version 1.3, `__dlpack_c_exchange_api__` of the tensors' type) is a table
// of functions that needs no compiling against the framework. Five attributes, asked of Python one
// by one, take ten times as long.
//
// Used by python_known.h, with the GIL held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "frameworks/python_work.h"
#include "runtime/base/foresight.h"

namespace horon_python {

// The table, as far as it is used.
struct DlExchange {
  uint32_t major, minor;
  DlExchange* older;
  void* not_used[3];
  int (*describe)(void* object, DlTensor* out);  // 0, or -1 with Python's error set; may be null
};
inline constexpr uint32_t kDlMajor = 1;
static_assert(sizeof(DlTensor) == 48 && offsetof(DlExchange, describe) == 40);

// What one tensor was like; answers whether another one is, by a call in C.
class TensorLook {
 public:
  // Nothing is known of a tensor whose type has no such table of its own (a subclass may mean other
  // things by its attributes), or that does not lie on the host, dense.
  void Take(PyObject* tensor) {
    type_ = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(tensor)));
    describe_ = DescribeOf(type_);
    DlTensor seen;
    if (describe_ == nullptr || !Ask(tensor, seen) || !Plain(seen)) {
      describe_ = nullptr;
      return;
    }
    code_ = seen.type_code;
    bits_ = seen.type_bits;
    shape_.assign(seen.shape, seen.shape + seen.ndim);
  }

  // Whether `Is` can tell of this tensor.
  bool Knows(PyObject* tensor) const {
    return describe_ != nullptr && reinterpret_cast<PyObject*>(Py_TYPE(tensor)) == type_.ptr();
  }
  // Whether it is on the host, dense, of the same type and shape; where it lies then.
  bool Is(PyObject* tensor, void*& place) const {
    DlTensor seen;
    if (!Ask(tensor, seen) || seen.type_code != code_ || seen.type_bits != bits_ ||
        static_cast<size_t>(seen.ndim) != shape_.size() ||
        (!shape_.empty() &&
         std::memcmp(seen.shape, shape_.data(), shape_.size() * sizeof(int64_t)) != 0) ||
        !Plain(seen)) {
      return false;
    }
    place = static_cast<char*>(seen.memory) + seen.byte_offset;
    shape_at_ = reinterpret_cast<const char*>(seen.shape);
    return true;
  }
  // Of the elements of such a tensor.
  size_t Bytes() const {
    size_t bytes = bits_ / 8;
    for (const int64_t extent : shape_) bytes *= static_cast<size_t>(extent);
    return bytes;
  }
  // What will be looked at of a tensor like this one, as far as it is the one seen last: what the
  // framework holds lies around its shape.
  const void* OfTensor() const { return shape_at_ == nullptr ? nullptr : shape_at_ - 64; }
  static constexpr size_t kBytesOfTensor = 192;
  const void* OfShape() const { return shape_.data(); }

 private:
  using Describe = decltype(DlExchange::describe);

  static Describe DescribeOf(const py::object& type) {
    static const char* const kAttribute = "__dlpack_c_exchange_api__";
    const py::object own = py::getattr(type, "__dict__", py::none());
    if (own.is_none() || !own.contains(kAttribute)) return nullptr;
    const py::object table = type.attr(kAttribute);
    if (!PyCapsule_IsValid(table.ptr(), "dlpack_exchange_api")) return nullptr;
    const auto* found =
        static_cast<const DlExchange*>(PyCapsule_GetPointer(table.ptr(), "dlpack_exchange_api"));
    while (found != nullptr && found->major > kDlMajor) found = found->older;
    return found == nullptr || found->major != kDlMajor ? nullptr : found->describe;
  }

  bool Ask(PyObject* tensor, DlTensor& seen) const {
    if (describe_(tensor, &seen) == 0) return true;
    PyErr_Clear();
    return false;
  }

  static bool Plain(const DlTensor& seen) {
    if (seen.device_type != kDlCpu) return false;
    if (seen.strides == nullptr) return true;
    bool dense = true;
    int64_t step = 1;
    for (int i = seen.ndim - 1; i >= 0; --i) {
      if (seen.shape[i] == 0) return true;
      if (seen.shape[i] != 1) dense = dense && seen.strides[i] == step;
      step *= seen.shape[i];
    }
    return dense;
  }

  py::object type_;
  Describe describe_ = nullptr;
  uint8_t code_ = 0, bits_ = 0;
  std::vector<int64_t> shape_;
  mutable const char* shape_at_ = nullptr;  // where it was seen last
};

}  // namespace horon_python

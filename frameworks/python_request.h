// ParsedRequest: a request as Python sends it, one plain tuple, in the form of the C API.
//
// A tuple costs one call and no keyword parsing; kFields names its places. Used by bindings.cc
// only, on any Python thread, with the GIL held.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "frameworks/python_work.h"
#include "horon/horon.h"

namespace horon_python {

namespace py = pybind11;

inline constexpr const char* kFields =
    "(name, spec, dtype, device, shape, input, output, prescale, postscale, process_set, splits, "
    "round, weights, stream)";
inline constexpr Py_ssize_t kFieldCount = 14;
inline constexpr Py_ssize_t kMaxDimensions = 64;  // torch's limit

inline void CheckPython() {
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
}

inline int64_t Integer(PyObject* object) { return PyLong_AsLongLong(object); }
inline int SmallInteger(PyObject* object) { return static_cast<int>(PyLong_AsLong(object)); }

inline void* Address(PyObject* object) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(PyLong_AsUnsignedLongLong(object)));
}

// As C has it: it ends where C's strings end.
inline const char* CText(PyObject* text, const char* what) {
  Py_ssize_t bytes = 0;
  const char* const utf8 = PyUnicode_AsUTF8AndSize(text, &bytes);
  if (utf8 != nullptr && std::strlen(utf8) == static_cast<size_t>(bytes)) return utf8;
  if (utf8 == nullptr && !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
    throw py::error_already_set();
  PyErr_Clear();
  const py::str shown = py::repr(py::handle(text));
  const std::string said = std::string(what) +
                           " is text without NUL and without halves of surrogates, not " +
                           shown.cast<std::string>();
  ThrowError(HORON_INVALID_ARGUMENT, said.c_str(), false);
}

// A request tuple in the C API's form. Strings stay owned by the tuple. Must not move once parsed.
class ParsedRequest {
 public:
  void Parse(PyObject* fields) {
    if (!PyTuple_Check(fields) || PyTuple_GET_SIZE(fields) != kFieldCount) {
      throw py::type_error(std::string("a request is a tuple ") + kFields);
    }
    const auto field = [fields](Py_ssize_t i) { return PyTuple_GET_ITEM(fields, i); };
    request_.struct_bytes = sizeof(horon_request);
    request_.name = CText(field(0), "a tensor's name");
    request_.op = CText(field(1), "an op");
    request_.dtype = SmallInteger(field(2));
    request_.device = SmallInteger(field(3));
    ParseShape(field(4));
    request_.input = Address(field(5));
    request_.output = Address(field(6));
    request_.prescale = PyFloat_AsDouble(field(7));
    request_.postscale = PyFloat_AsDouble(field(8));
    request_.process_set = SmallInteger(field(9));
    ParseSplits(field(10));
    request_.round = Integer(field(11));
    ParseWeights(field(12));
    request_.stream = Address(field(13));
    CheckPython();
  }
  const horon_request& request() const { return request_; }

 private:
  void ParseShape(PyObject* shape) {
    if (!PyTuple_Check(shape) || PyTuple_GET_SIZE(shape) > kMaxDimensions) {
      throw py::type_error("a shape is a tuple of at most 64 numbers");
    }
    const Py_ssize_t ndim = PyTuple_GET_SIZE(shape);
    for (Py_ssize_t i = 0; i < ndim; ++i) {
      shape_[static_cast<size_t>(i)] = Integer(PyTuple_GET_ITEM(shape, i));
    }
    request_.shape = shape_.data();
    request_.ndim = static_cast<int>(ndim);
  }

  void ParseSplits(PyObject* splits) {
    if (splits == Py_None) return;
    if (!PyTuple_Check(splits)) throw py::type_error("splits are a tuple of numbers, or None");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(splits); ++i) {
      splits_.push_back(Integer(PyTuple_GET_ITEM(splits, i)));
    }
    request_.splits = splits_.data();
    request_.splits_count = static_cast<int>(PyTuple_GET_SIZE(splits));
  }

  void ParseWeights(PyObject* weights) {
    if (weights == Py_None) return;
    if (!PyTuple_Check(weights)) throw py::type_error("weights are a tuple of numbers, or None");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(weights); ++i) {
      weights_.push_back(PyFloat_AsDouble(PyTuple_GET_ITEM(weights, i)));
    }
    request_.weights = weights_.data();
    request_.weights_count = static_cast<int>(PyTuple_GET_SIZE(weights));
  }

  horon_request request_{};
  std::array<int64_t, kMaxDimensions> shape_;
  std::vector<int64_t> splits_;
  std::vector<double> weights_;
};

}  // namespace horon_python

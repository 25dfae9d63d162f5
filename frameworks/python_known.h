// Known: what a call of the shim was like, so that the same call can be recognised and submitted
// without building requests: its arguments by identity, and its tensors' types and shapes.
//
// Used by python_repeat.h and what is built on it, with the GIL held.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "frameworks/python_request.h"
#include "frameworks/python_tensor.h"
#include "frameworks/python_work.h"

namespace horon_python {

namespace attribute {
inline PyObject *dtype, *shape, *is_cpu, *is_contiguous, *data_ptr, *grad, *copy_, *is_sparse, *requires_grad, *name,
    *set_number;
}

inline void DefineAttributes() {
  attribute::dtype = PyUnicode_InternFromString("dtype");
  attribute::shape = PyUnicode_InternFromString("shape");
  attribute::is_cpu = PyUnicode_InternFromString("is_cpu");
  attribute::is_contiguous = PyUnicode_InternFromString("is_contiguous");
  attribute::data_ptr = PyUnicode_InternFromString("data_ptr");
  attribute::grad = PyUnicode_InternFromString("grad");
  attribute::copy_ = PyUnicode_InternFromString("copy_");
  attribute::is_sparse = PyUnicode_InternFromString("is_sparse");
  attribute::requires_grad = PyUnicode_InternFromString("requires_grad");
  attribute::name = PyUnicode_InternFromString("name");
  attribute::set_number = PyUnicode_InternFromString("process_set_id");
}

// One tensor: registered, and what it was like.
struct Member {
  horon_tensor* tensor = nullptr;
  py::object dtype, shape;
  TensorLook look;

  Member() = default;
  Member(Member&& other) noexcept
      : tensor(std::exchange(other.tensor, nullptr)),
        dtype(std::move(other.dtype)),
        shape(std::move(other.shape)),
        look(std::move(other.look)) {}
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() { horon_tensor_release(tensor); }
};

// What a Repeat knows of the call.
struct Known {
  std::vector<Member> members;
  bool group = false;
  py::object arguments = {};  // all but the first, a tuple; compared by identity, numbers by value
  // Of a call of a Repeated:
  py::object keywords = {};  // the names of the last of them, a tuple; null: none
  Py_ssize_t name_at = -1;   // which of them is the tensor's name, by which this was found
  py::object set = {}, set_number = {};  // the process set, and what number it had
  bool of_all = false;                   // set 0, which stays it

  void Of(py::object process_set) {
    set_number = process_set.attr(attribute::set_number);
    of_all = PyLong_CheckExact(set_number.ptr()) && PyLong_AsLong(set_number.ptr()) == 0;
    set = std::move(process_set);
  }
};

// Sees what a call over one tensor needs.
using CallForesight = horon::Foresight<sizeof(Known), sizeof(Member), 32,
                                       TensorLook::kBytesOfTensor, 64, 64, 64>;
// `first`: the object that the call begins with.
inline CallForesight::Addresses AddressesOf(const Known& known, PyObject* first,
                                            PyObject* tensor) {
  const Member& member = known.members[0];
  return {&known, &member, member.look.OfShape(), member.look.OfTensor(), known.arguments.ptr(),
          first,  tensor};
}

// Whether `object.name` is `value`. An object that has no such attribute is no tensor: the long way
// says so.
inline bool AttributeIs(PyObject* object, PyObject* name, PyObject* value) {
  const py::object found = py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));
  if (found.ptr() == value) return true;
  const bool equal = found && (PyTuple_Check(value) || PyLong_CheckExact(value)) &&
                     PyObject_RichCompareBool(found.ptr(), value, Py_EQ) == 1;
  PyErr_Clear();
  return equal;
}

inline bool HasAttributesOf(const Member& member, PyObject* tensor) {
  if (!AttributeIs(tensor, attribute::dtype, member.dtype.ptr()) ||
      !AttributeIs(tensor, attribute::shape, member.shape.ptr()) ||
      !AttributeIs(tensor, attribute::is_cpu, Py_True)) {
    return false;
  }
  const py::object dense = py::reinterpret_steal<py::object>(
      PyObject_CallMethodNoArgs(tensor, attribute::is_contiguous));
  PyErr_Clear();
  return dense.ptr() == Py_True;
}

inline void* AddressOf(PyObject* tensor) {
  PyObject* const number = PyObject_CallMethodNoArgs(tensor, attribute::data_ptr);
  if (number == nullptr) return nullptr;
  void* const address = Address(number);
  Py_DECREF(number);
  return address;
}

// Whether the tensor is like the one that was registered: dense, on the host, of its type and
// shape; where it lies then. May leave an error set.
inline bool Fits(const Member& member, PyObject* tensor, void*& place) {
  if (member.look.Knows(tensor)) return member.look.Is(tensor, place);
  if (!HasAttributesOf(member, tensor)) return false;
  place = AddressOf(tensor);
  return PyErr_Occurred() == nullptr;
}

// Whether `given` is what was remembered: the same object, or an equal number.
inline bool Equal(PyObject* given, PyObject* known) {
  if (given == known) return true;
  const bool numbers = (PyFloat_CheckExact(given) && PyFloat_CheckExact(known)) ||
                       (PyLong_CheckExact(given) && PyLong_CheckExact(known));
  return numbers && PyObject_RichCompareBool(given, known, Py_EQ) == 1;
}

// A set that was removed has no number, and one that was made again has another.
inline bool SameSet(const Known& known) {
  return known.of_all ||
         AttributeIs(known.set.ptr(), attribute::set_number, known.set_number.ptr());
}

inline bool Same(const Known& known, PyObject* const* given, Py_ssize_t count) {
  PyObject* const arguments = known.arguments.ptr();
  if (arguments == nullptr || count != PyTuple_GET_SIZE(arguments)) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (i != known.name_at && !Equal(given[i], PyTuple_GET_ITEM(arguments, i))) return false;
  }
  return true;
}

// Where the tensors of a call lie, if they are as many and like those that were registered, and
// what has to live until they are done. A group's list is made anew: nobody else can change it.
inline py::object FittingGroup(const Known& known, PyObject* tensors, std::vector<void*>& places) {
  if (!PyList_Check(tensors) && !PyTuple_Check(tensors)) return {};
  py::object list = py::reinterpret_steal<py::object>(PySequence_List(tensors));
  if (!list || PyList_GET_SIZE(list.ptr()) != static_cast<Py_ssize_t>(known.members.size()))
    return {};
  places.resize(known.members.size());
  for (size_t i = 0; i < known.members.size(); ++i) {
    PyObject* const tensor = PyList_GET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i));
    if (!Fits(known.members[i], tensor, places[i])) return {};
  }
  return list;
}

inline horon_work* StartGroup(const Known& known, const std::vector<void*>& places,
                              bool will_wait) {
  std::vector<horon_tensor*> tensors;
  tensors.reserve(places.size());
  for (const Member& member : known.members) tensors.push_back(member.tensor);
  horon_work* work = nullptr;
  CheckSubmit(horon_start_all(tensors.data(), places.data(), places.data(),
                              static_cast<int>(places.size()), will_wait ? 1 : 0, &work));
  return work;
}

inline horon_work* StartOne(const Known& known, void* place, bool will_wait) {
  horon_work* work = nullptr;
  CheckSubmit(horon_start(known.members[0].tensor, place, place, will_wait ? 1 : 0, &work));
  return work;
}

// The tensors of `requests`, registered; as the group of this name unless it is None.
inline std::vector<Member> Register(const py::sequence& requests, const py::sequence& tensors,
                                    const py::object& group) {
  std::vector<ParsedRequest> parsed(requests.size());
  std::vector<horon_request> plain;
  for (size_t i = 0; i < requests.size(); ++i) {
    parsed[i].Parse(py::object(requests[i]).ptr());
    plain.push_back(parsed[i].request());
  }
  std::vector<horon_tensor*> registered(plain.size());
  CheckSubmit(group.is_none()
                  ? horon_register(plain.data(), registered.data())
                  : horon_register_group(plain.data(), static_cast<int>(plain.size()),
                                         CText(group.ptr(), "a group's name"), registered.data()));
  std::vector<Member> members(plain.size());
  for (size_t i = 0; i < plain.size(); ++i) members[i].tensor = registered[i];
  for (size_t i = 0; i < plain.size(); ++i) {
    members[i].dtype = tensors[i].attr("dtype");
    members[i].shape = tensors[i].attr("shape");
    members[i].look.Take(py::object(tensors[i]).ptr());
  }
  return members;
}

}  // namespace horon_python

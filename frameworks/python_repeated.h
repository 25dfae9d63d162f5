// Repeated: a public function of the shim that reduces in place, with a memory: a call by a name
// that it has seen before, with the same arguments, goes straight to the runtime; any other goes to
// the Python function, which may tell it with remember() what the call came to.
//
// What would be Python's work (a frame, binding arguments, looking into tensors) is most of the
// cost of a small tensor. Used by bindings.cc only, with the GIL held.
#pragma once

#include "frameworks/python_repeat.h"
#include "structmember.h"  // NOLINT: Python's

namespace horon_python {

inline constexpr Py_ssize_t kMostNames = 65536;
inline constexpr Py_ssize_t kNamePlace = 2;  // of `name`, where it is not given as a keyword

struct Repeated {
  PyObject_HEAD;
  vectorcallfunc call;
  PyObject* attributes;
  PyObject* function;
  PyObject* names;  // dict: name -> Repeat, or None if it came only once
  bool blocking;
  CallForesight* next;
};

inline PyTypeObject* repeated_type = nullptr;

// Arguments as they came. The first is the tensor, or the list of them.
struct Given {
  PyObject* const* all;
  Py_ssize_t positional;
  PyObject* keywords;  // null: none

  Py_ssize_t count() const {
    return positional + (keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords));
  }
  Py_ssize_t NameAt() const {
    for (Py_ssize_t i = positional; i < count(); ++i) {
      if (PyTuple_GET_ITEM(keywords, i - positional) == attribute::name) return i;
    }
    return kNamePlace < positional ? kNamePlace : -1;
  }
  // The tensor's name; null if it has none, or Python's way to pass arguments is another one.
  PyObject* Name() const {
    const Py_ssize_t at = positional > 0 ? NameAt() : -1;
    return at >= 0 && PyUnicode_CheckExact(all[at]) ? all[at] : nullptr;
  }
};

inline bool SameKeywords(PyObject* given, PyObject* known) {
  if (given == known) return true;  // one place in a program gives the same tuple every time
  return given != nullptr && known != nullptr && PyObject_RichCompareBool(given, known, Py_EQ) == 1;
}

inline bool Matches(const Known& known, const Given& given) {
  return SameKeywords(given.keywords, known.keywords.ptr()) &&
         Same(known, given.all + 1, given.count() - 1) && SameSet(known);
}

// What the function has just remembered lacks the arguments that it was called with.
inline void Complete(PyObject* repeat, const Given& given) {
  if (repeat == nullptr || repeat == Py_None) return;
  Known& known = *reinterpret_cast<Repeat*>(repeat)->known;
  if (known.arguments) return;
  py::tuple arguments(given.count() - 1);
  for (Py_ssize_t i = 1; i < given.count(); ++i)
    arguments[static_cast<size_t>(i - 1)] = py::reinterpret_borrow<py::object>(given.all[i]);
  known.keywords = py::reinterpret_borrow<py::object>(given.keywords);
  known.name_at = given.NameAt() - 1;
  known.arguments = std::move(arguments);
}

inline PyObject* RepeatedCall(PyObject* self, PyObject* const* all, size_t flags,
                              PyObject* keywords) {
  const auto& repeated = *reinterpret_cast<Repeated*>(self);
  const Given given = {all, PyVectorcall_NARGS(flags), keywords};
  PyObject* const name = given.Name();
  PyObject* const known =
      name == nullptr ? nullptr : PyDict_GetItemWithError(repeated.names, name);
  if (known != nullptr && known != Py_None && Matches(KnownTo(known), given)) {
    const py::object kept = py::reinterpret_borrow<py::object>(known);
    if (!KnownTo(known).group) repeated.next->Come(AddressesOf(KnownTo(known), known, all[0]));
    PyObject* const result =
        repeated.blocking ? RunAgain(KnownTo(known), all[0]) : StartAgain(KnownTo(known), all[0]);
    if (result != Py_None) return result;
    Py_DECREF(result);
  }
  PyObject* const result = PyObject_Vectorcall(repeated.function, all, flags, keywords);
  if (result != nullptr && name != nullptr) Complete(PyDict_GetItem(repeated.names, name), given);
  return result;
}

// The short way of a function that waits for a handle, if that is a Started.
inline PyObject* WaitingCall(PyObject* self, PyObject* const* all, size_t flags,
                             PyObject* keywords) {
  const bool alone = PyVectorcall_NARGS(flags) == 1 && keywords == nullptr;
  if (alone && Py_TYPE(all[0]) == started_type) return StartedWait(all[0], nullptr);
  return PyObject_Vectorcall(reinterpret_cast<Repeated*>(self)->function, all, flags, keywords);
}

inline py::dict NamesOf(const py::handle& repeated) {
  return py::reinterpret_borrow<py::dict>(reinterpret_cast<Repeated*>(repeated.ptr())->names);
}

// forget(repeated, name): calls by this name cannot be repeated, or are to be remembered only when
// they come once more.
inline void Forget(const py::handle& repeated, const py::str& name) {
  py::dict names = NamesOf(repeated);
  if (PyDict_Size(names.ptr()) >= kMostNames) names.clear();
  names[name] = py::none();
}

// remember(repeated, name, requests, tensors, group, process_set): how the call under way, by this
// name, is submitted.
inline void Remember(const py::handle& repeated, const py::str& name, const py::sequence& requests,
                     const py::sequence& tensors, const py::object& group,
                     const py::object& process_set) {
  if (!NamesOf(repeated).contains(name)) return Forget(repeated, name);
  Known known = {Register(requests, tensors, group), !group.is_none()};
  known.Of(process_set);
  NamesOf(repeated)[name] = AsRepeat(std::move(known));
}

inline void RepeatedFree(PyObject* self) {
  auto* const repeated = reinterpret_cast<Repeated*>(self);
  PyTypeObject* const type = Py_TYPE(self);
  Py_XDECREF(repeated->attributes);
  Py_XDECREF(repeated->function);
  Py_XDECREF(repeated->names);
  delete repeated->next;
  PyObject_Free(self);
  Py_DECREF(type);
}

// Pickled by name, like a function.
inline PyObject* RepeatedReduce(PyObject* self, PyObject*) {
  return PyObject_GetAttrString(self, "__qualname__");
}

// A method of the class that it is in, like a function.
inline PyObject* RepeatedGet(PyObject* self, PyObject* object, PyObject*) {
  return object == nullptr || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

inline py::object MakeCallable(const py::object& function, bool blocking, vectorcallfunc call) {
  auto* const made = PyObject_New(Repeated, repeated_type);
  if (made == nullptr) throw py::error_already_set();
  made->call = call;
  made->attributes = PyDict_New();
  made->function = Py_NewRef(function.ptr());
  made->names = PyDict_New();
  made->blocking = blocking;
  made->next = new CallForesight;
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(made));
}

inline py::object MakeRepeated(const py::object& function, bool blocking) {
  return MakeCallable(function, blocking, RepeatedCall);
}

// waiting(function): one of a handle, which returns handle.wait().
inline py::object MakeWaiting(const py::object& function) {
  return MakeCallable(function, true, WaitingCall);
}

inline void DefineRepeated(py::module_& module) {
  static PyMethodDef methods[] = {{"__reduce__", RepeatedReduce, METH_NOARGS, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};
  static PyMemberDef places[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(Repeated, call), READONLY, nullptr},
      {"__dictoffset__", T_PYSSIZET, offsetof(Repeated, attributes), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyGetSetDef computed[] = {
      {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr}};
  repeated_type = MakeType("horon._core.Repeated", sizeof(Repeated), RepeatedFree, methods,
                           {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                            {Py_tp_descr_get, reinterpret_cast<void*>(RepeatedGet)},
                            {Py_tp_members, places},
                            {Py_tp_getset, computed}},
                           Py_TPFLAGS_HAVE_VECTORCALL);
  module.def("repeated", &MakeRepeated, py::arg("function"), py::arg("blocking"));
  module.def("waiting", &MakeWaiting, py::arg("function"));
  module.def("forget", &Forget, py::arg("repeated"), py::arg("name"));
  module.def("remember", &Remember, py::arg("repeated"), py::arg("name"), py::arg("requests"),
             py::arg("tensors"), py::arg("group"), py::arg("process_set"));
}

}  // namespace horon_python

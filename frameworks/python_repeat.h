// Repeat and Started: the short way for a tensor that is reduced again and again.
//
// A Repeat remembers a whole call of the shim: the arguments that it was made with, by identity,
// and what the tensor was like. Its start() looks whether this call is the same but for the
// tensor's address, and if so submits it without building a request: half a microsecond instead of
// ten. A Started is what came of it, and a handle like any other.
//
// Plain CPython types, without pybind11's objects around them and without the garbage collector: a
// thousand of them live at once. Used by bindings.cc only, with the GIL held.
#pragma once

#include "frameworks/python_request.h"
#include "frameworks/python_work.h"

namespace horon_python {

// Steals nothing, throws nothing: null with an error set is Python's way to fail.
struct Started {
  PyObject_HEAD;
  PyWork* work;
  PyObject* result;  // the tensor; also what keeps it alive
};

struct Repeat {
  PyObject_HEAD;
  horon_tensor* tensor;
  PyObject* arguments;  // tuple, compared by identity
  PyObject* dtype;
  PyObject* shape;
};

inline PyTypeObject *started_type = nullptr, *repeat_type = nullptr;

namespace attribute {
inline PyObject *dtype, *shape, *is_cpu, *is_contiguous, *data_ptr;
}

// Whatever C++ threw becomes Python's error.
template <typename F>
PyObject* InPython(F&& f) {
  try {
    return f();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

inline PyObject* StartedWait(PyObject* self, PyObject*) {
  auto* const started = reinterpret_cast<Started*>(self);
  return InPython([&] {
    started->work->Wait(-1);
    return Py_NewRef(started->result);
  });
}

inline PyObject* StartedDone(PyObject* self, PyObject*) {
  return PyBool_FromLong(reinterpret_cast<Started*>(self)->work->done() ? 1 : 0);
}

inline void StartedFree(PyObject* self) {
  auto* const started = reinterpret_cast<Started*>(self);
  PyTypeObject* const type = Py_TYPE(self);
  delete started->work;  // a pending one keeps the tensor itself
  Py_XDECREF(started->result);
  PyObject_Free(self);
  Py_DECREF(type);
}

// Whether `object.name` is `value`. An object that has no such attribute is no tensor: the long way
// says so.
inline bool AttributeIs(PyObject* object, PyObject* name, PyObject* value) {
  const py::object found = py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));
  if (found.ptr() == value) return true;
  const bool equal =
      found && PyTuple_Check(value) && PyObject_RichCompareBool(found.ptr(), value, Py_EQ) == 1;
  PyErr_Clear();
  return equal;
}

// Whether the tensor is like the one that was registered: dense, on the host, of its type and
// shape.
inline bool Fits(const Repeat& repeat, PyObject* tensor) {
  if (!AttributeIs(tensor, attribute::dtype, repeat.dtype) ||
      !AttributeIs(tensor, attribute::shape, repeat.shape) ||
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

// Whether these are the arguments that were remembered: the same objects, or equal numbers.
inline bool Same(const Repeat& repeat, PyObject* const* given, Py_ssize_t count) {
  if (count != PyTuple_GET_SIZE(repeat.arguments)) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const known = PyTuple_GET_ITEM(repeat.arguments, i);
    if (given[i] == known) continue;
    const bool numbers = (PyFloat_CheckExact(given[i]) && PyFloat_CheckExact(known)) ||
                         (PyLong_CheckExact(given[i]) && PyLong_CheckExact(known));
    if (!numbers || PyObject_RichCompareBool(given[i], known, Py_EQ) != 1) return false;
  }
  return true;
}

// Submits if the call is the one remembered; `use` makes Python's answer of the work. None if it is
// another call.
template <typename F>
PyObject* SubmitAgain(PyObject* self, PyObject* const* given, Py_ssize_t count, bool will_wait,
                      F&& use) {
  const auto& repeat = *reinterpret_cast<Repeat*>(self);
  if (count < 2 || !Same(repeat, given + 2, count - 2)) Py_RETURN_NONE;
  if (!Fits(repeat, given[0])) Py_RETURN_NONE;
  return InPython([&]() -> PyObject* {
    DroppedWorks().Sweep();
    const bool in_place = given[0] == given[1];
    const void* const input = AddressOf(given[0]);
    void* const output = in_place ? const_cast<void*>(input) : AddressOf(given[1]);
    CheckPython();
    // Until it is done the runtime uses both, whoever forgets the handle.
    py::object keep = in_place
                          ? py::reinterpret_borrow<py::object>(given[0])
                          : py::reinterpret_steal<py::object>(PyTuple_Pack(2, given[0], given[1]));
    horon_work* work = nullptr;
    CheckSubmit(horon_start(repeat.tensor, input, output, will_wait ? 1 : 0, &work));
    return use(work, std::move(keep), given[1]);
  });
}

// start(input, output, *arguments) -> Started
inline PyObject* RepeatStart(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  const auto use = [](horon_work* work, py::object keep, PyObject* output) {
    auto owned = std::make_unique<PyWork>(work, std::move(keep));
    auto* const started = PyObject_New(Started, started_type);
    if (started == nullptr) throw py::error_already_set();
    started->work = owned.release();
    started->result = Py_NewRef(output);
    return reinterpret_cast<PyObject*>(started);
  };
  return SubmitAgain(self, given, count, false, use);
}

// run(input, output, *arguments) -> output
inline PyObject* RepeatRun(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  const auto use = [](horon_work* work, py::object keep, PyObject* output) {
    PyWork(work, std::move(keep)).Wait(-1);
    return Py_NewRef(output);
  };
  return SubmitAgain(self, given, count, true, use);
}

inline void RepeatFree(PyObject* self) {
  auto* const repeat = reinterpret_cast<Repeat*>(self);
  PyTypeObject* const type = Py_TYPE(self);
  horon_tensor_release(repeat->tensor);
  Py_XDECREF(repeat->arguments);
  Py_XDECREF(repeat->dtype);
  Py_XDECREF(repeat->shape);
  PyObject_Free(self);
  Py_DECREF(type);
}

// repeat(request, tensor, arguments): for calls like this one.
inline py::object MakeRepeat(const py::handle& request, const py::handle& tensor,
                             const py::tuple& arguments) {
  ParsedRequest parsed;
  parsed.Parse(request.ptr());
  horon_tensor* registered = nullptr;
  CheckSubmit(horon_register(&parsed.request(), &registered));
  auto* const repeat = PyObject_New(Repeat, repeat_type);
  if (repeat == nullptr) throw py::error_already_set();
  repeat->tensor = registered;
  repeat->arguments = Py_NewRef(arguments.ptr());
  repeat->dtype = PyObject_GetAttr(tensor.ptr(), attribute::dtype);
  repeat->shape = PyObject_GetAttr(tensor.ptr(), attribute::shape);
  py::object made = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(repeat));
  CheckPython();
  return made;
}

// A heap type that Python code can name but not make.
inline PyTypeObject* MakeType(const char* name, int bytes, destructor free, PyMethodDef* methods) {
  PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(free)}, {Py_tp_methods, methods}, {0, nullptr}};
  PyType_Spec spec = {name, bytes, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                      slots};
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  return reinterpret_cast<PyTypeObject*>(type);
}

inline void DefineRepeat(py::module_& module) {
  attribute::dtype = PyUnicode_InternFromString("dtype");
  attribute::shape = PyUnicode_InternFromString("shape");
  attribute::is_cpu = PyUnicode_InternFromString("is_cpu");
  attribute::is_contiguous = PyUnicode_InternFromString("is_contiguous");
  attribute::data_ptr = PyUnicode_InternFromString("data_ptr");
  static PyMethodDef of_started[] = {
      {"wait", StartedWait, METH_NOARGS, "Blocks until done; the tensor. Raises what went wrong."},
      {"done", StartedDone, METH_NOARGS, "Whether wait() would return at once."},
      {nullptr, nullptr, 0, nullptr}};
  static PyMethodDef of_repeat[] = {
      {"start", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(RepeatStart)), METH_FASTCALL,
       "start(input, output, *arguments): Started, or None if the call is another one."},
      {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(RepeatRun)), METH_FASTCALL,
       "run(input, output, *arguments): output, reduced, or None if the call is another one."},
      {nullptr, nullptr, 0, nullptr}};
  started_type = MakeType("horon._core.Started", sizeof(Started), StartedFree, of_started);
  repeat_type = MakeType("horon._core.Repeat", sizeof(Repeat), RepeatFree, of_repeat);
  module.attr("Started") = py::handle(reinterpret_cast<PyObject*>(started_type));
  module.def("repeat", &MakeRepeat, py::arg("request"), py::arg("tensor"), py::arg("arguments"));
}

}  // namespace horon_python

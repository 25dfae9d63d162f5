// Repeat and Started: the short way for a tensor, or a group of them, that is reduced in place
// again and again.
//
// A Repeat is Known as an object of Python: a whole call of the shim, the arguments that it was
// made with, by identity, and what the tensors were like. A call that is the same but for the
// tensors' addresses is submitted without building requests: half a microsecond instead of ten. A
// Started is what came of it, and a handle like any other.
//
// Plain CPython types, without pybind11's objects around them and without the garbage collector: a
// thousand of them live at once. Used by bindings.cc only, with the GIL held.
#pragma once

#include <algorithm>

#include "frameworks/python_known.h"
#include "structmember.h"  // NOLINT: Python's

namespace horon_python {

// Steals nothing, throws nothing: null with an error set is Python's way to fail.
struct Started {
  PyObject_HEAD;
  PyWork work;
  PyObject* result;  // the tensor, or the list of them; also what keeps them alive
};

struct Repeat {
  PyObject_HEAD;
  Known* known;
};

inline PyTypeObject *started_type = nullptr, *repeat_type = nullptr;

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
    started->work.Wait(-1);
    return Py_NewRef(started->result);
  });
}

// Of ms; the work's error is raised.
inline PyObject* StartedWaitFor(PyObject* self, PyObject* ms) {
  const long limit = PyLong_AsLong(ms);
  if (limit == -1 && PyErr_Occurred() != nullptr) return nullptr;
  return InPython([&] {
    const bool done = reinterpret_cast<Started*>(self)->work.Wait(static_cast<int>(limit));
    return PyBool_FromLong(done ? 1 : 0);
  });
}

inline PyObject* StartedDone(PyObject* self, PyObject*) {
  return PyBool_FromLong(reinterpret_cast<Started*>(self)->work.done() ? 1 : 0);
}

inline void StartedFree(PyObject* self) {
  auto* const started = reinterpret_cast<Started*>(self);
  PyTypeObject* const type = Py_TYPE(self);
  started->work.~PyWork();  // a pending one keeps the tensor itself
  Py_XDECREF(started->result);
  PyObject_Free(self);
  Py_DECREF(type);
}

// Submits `given`, a tensor or a sequence of them, if it is like what was remembered; `use` makes
// Python's answer of the work and of what must live until it is done. None if it is not like it.
template <typename F>
PyObject* SubmitAgain(const Known& known, PyObject* given, bool will_wait, F&& use) {
  return InPython([&]() -> PyObject* {
    DroppedWorks().Sweep();  // may run Python's code, so before the tensors are looked at
    py::object kept;
    void* place = nullptr;
    std::vector<void*> places;
    if (known.group) {
      kept = FittingGroup(known, given, places);
    } else if (Fits(known.members[0], given, place)) {
      kept = py::reinterpret_borrow<py::object>(given);
    }
    if (!kept) {
      PyErr_Clear();
      Py_RETURN_NONE;
    }
    horon_work* const work =
        known.group ? StartGroup(known, places, will_wait) : StartOne(known, place, will_wait);
    return use(work, kept);
  });
}

inline PyObject* StartAgain(const Known& known, PyObject* given) {
  return SubmitAgain(known, given, false, [](horon_work* work, const py::object& kept) {
    auto* const started = PyObject_New(Started, started_type);
    if (started == nullptr) {
      const PyWork dropped(work, kept);
      throw py::error_already_set();
    }
    new (&started->work) PyWork(work, kept);
    started->result = Py_NewRef(kept.ptr());
    return reinterpret_cast<PyObject*>(started);
  });
}

inline PyObject* RunAgain(const Known& known, PyObject* given) {
  return SubmitAgain(known, given, true, [](horon_work* work, const py::object& kept) {
    PyWork(work, kept).Wait(-1);
    return Py_NewRef(kept.ptr());
  });
}

inline const Known& KnownTo(PyObject* repeat) { return *reinterpret_cast<Repeat*>(repeat)->known; }

inline void RepeatFree(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete reinterpret_cast<Repeat*>(self)->known;
  PyObject_Free(self);
  Py_DECREF(type);
}

inline py::object AsRepeat(Known known) {
  auto* const repeat = PyObject_New(Repeat, repeat_type);
  if (repeat == nullptr) throw py::error_already_set();
  repeat->known = new Known(std::move(known));
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(repeat));
}

// A heap type that Python code can name but not make. More slots and flags where it needs them.
inline PyTypeObject* MakeType(const char* name, size_t bytes, destructor free, PyMethodDef* methods,
                              std::vector<PyType_Slot> slots = {}, unsigned long flags = 0) {
  slots.push_back({Py_tp_dealloc, reinterpret_cast<void*>(free)});
  slots.push_back({Py_tp_methods, methods});
  slots.push_back({0, nullptr});
  PyType_Spec spec = {
      name, static_cast<int>(bytes), 0,
      static_cast<unsigned>(Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | flags),
      slots.data()};
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  return reinterpret_cast<PyTypeObject*>(type);
}

// A C function of any of the signatures that a PyMethodDef may hold.
template <typename F>
PyCFunction Method(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

inline void DefineRepeat(py::module_& module) {
  DefineAttributes();
  static PyMethodDef of_started[] = {
      {"wait", StartedWait, METH_NOARGS, "Blocks until done; the tensor. Raises what went wrong."},
      {"wait_for", StartedWaitFor, METH_O, "Whether it is done within so many ms."},
      {"done", StartedDone, METH_NOARGS, "Whether wait() would return at once."},
      {nullptr, nullptr, 0, nullptr}};
  static PyMethodDef of_repeat[] = {{nullptr, nullptr, 0, nullptr}};
  started_type = MakeType("horon._core.Started", sizeof(Started), StartedFree, of_started);
  repeat_type = MakeType("horon._core.Repeat", sizeof(Repeat), RepeatFree, of_repeat);
  module.attr("Started") = py::handle(reinterpret_cast<PyObject*>(started_type));
}

}  // namespace horon_python

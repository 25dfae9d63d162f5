// GradientHook: what autograd calls when a parameter's gradient is complete. It starts the
// gradient's reduction, in a microsecond when it can be submitted like the last time; otherwise it
// calls back into horon/torch/reducer.py.
//
// A plain CPython type: a hook runs between two layers of backward, where Python frames would find
// cold caches. Used by bindings.cc only, with the GIL held, on autograd's threads one at a time and
// on the thread that trains.
#pragma once

#include "frameworks/python_gathered.h"

namespace horon_python {

struct GradientHook {
  PyObject_HEAD;
  vectorcallfunc call;
  long left;            // backward passes until the reduction starts
  PyObject* pending;    // what is under way, it has a wait(); or None
  PyObject* otherwise;  // callable(parameter): the long way
  PyObject* gatherer;   // of the reducer whose hook it is
  PyObject* view;       // tensor that the gradient shall be (gradient_views.py); or None
  Known* known;         // how it was submitted; null: not known
};

inline PyTypeObject* gradient_hook_type = nullptr;

inline GradientHook& HookOf(PyObject* self) { return *reinterpret_cast<GradientHook*>(self); }

inline bool IsFalse(PyObject* tensor, PyObject* name) {
  const auto is = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor, name));
  return is && is.ptr() == Py_False;
}

// Gives the view the gradient's value; false also with an error set. Of a dense one that is like
// those before it the bytes alone, without the framework's help.
inline bool Copied(const TensorLook& look, PyObject* gradient, PyObject* view) {
  void *from = nullptr, *to = nullptr;
  if (look.Knows(gradient) && look.Knows(view) && look.Is(gradient, from) && look.Is(view, to)) {
    std::memcpy(to, from, look.Bytes());
    return true;
  }
  if (!IsFalse(gradient, attribute::is_sparse)) return false;
  const auto copied = py::reinterpret_steal<py::object>(
      PyObject_CallMethodOneArg(view, attribute::copy_, gradient));
  return static_cast<bool>(copied);
}

// Makes the view the gradient, with its value; false also with an error set, and where only
// gradient_views.py can do it: a sparse gradient, or one that has a graph of its own.
inline bool Adopt(const TensorLook& look, PyObject* parameter, PyObject* gradient,
                  PyObject* view) {
  return IsFalse(gradient, attribute::requires_grad) && Copied(look, gradient, view) &&
         PyObject_SetAttr(parameter, attribute::grad, view) == 0;
}

// Whether it has started; false also with an error set.
inline bool StartedLikeBefore(GradientHook& hook, PyObject* parameter) {
  if (hook.known == nullptr || hook.left != 1 || hook.pending != Py_None) return false;
  Gatherer& gatherer = GathererOf(hook.gatherer);
  if (!SameSetAs(gatherer, *hook.known)) return false;
  DroppedWorks().Sweep();  // may run Python's code, so before the gradient is looked at
  py::object gradient =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(parameter, attribute::grad));
  if (!gradient || gradient.is_none()) return false;
  if (hook.view != Py_None && gradient.ptr() != hook.view) {
    if (!Adopt(hook.known->members[0].look, parameter, gradient.ptr(), hook.view)) return false;
    gradient = py::reinterpret_borrow<py::object>(hook.view);
  }
  void* place = nullptr;
  if (!Fits(hook.known->members[0], gradient.ptr(), place)) {
    PyErr_Clear();
    return false;
  }
  if (place == nullptr) return false;  // no elements
  gatherer.next.Come(AddressesOf(*hook.known, reinterpret_cast<PyObject*>(&hook), gradient.ptr()));
  hook.pending = StartInto(gatherer, *hook.known, gradient.ptr(), place).release().ptr();
  Py_DECREF(Py_None);
  hook.left = 0;
  return true;
}

inline PyObject* GradientHookCall(PyObject* self, PyObject* const* given, size_t flags,
                                  PyObject* keywords) {
  GradientHook& hook = HookOf(self);
  const bool plain = PyVectorcall_NARGS(flags) == 1 && keywords == nullptr;
  return InPython([&]() -> PyObject* {
    if (plain && StartedLikeBefore(hook, given[0])) Py_RETURN_NONE;
    if (PyErr_Occurred() != nullptr) return nullptr;
    return PyObject_Vectorcall(hook.otherwise, given, flags, keywords);
  });
}

// remember(request, gradient, process_set): the call that reduces the gradient in place.
inline PyObject* GradientHookRemember(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "remember(request, gradient, process_set)");
    return nullptr;
  }
  return InPython([&] {
    const auto request = py::make_tuple(py::handle(given[0])),
               tensor = py::make_tuple(py::handle(given[1]));
    auto known = std::make_unique<Known>(Known{Register(request, tensor, py::none())});
    known->Of(py::reinterpret_borrow<py::object>(given[2]));
    delete std::exchange(HookOf(self).known, known.release());
    return Py_NewRef(Py_None);
  });
}

inline PyObject* GradientHookForget(PyObject* self, PyObject*) {
  delete std::exchange(HookOf(self).known, nullptr);
  return Py_NewRef(Py_None);
}

inline int GradientHookTraverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(HookOf(self).pending);
  Py_VISIT(HookOf(self).otherwise);
  Py_VISIT(HookOf(self).gatherer);
  Py_VISIT(HookOf(self).view);
  return 0;
}

inline int GradientHookClear(PyObject* self) {
  Py_CLEAR(HookOf(self).pending);
  Py_CLEAR(HookOf(self).otherwise);
  Py_CLEAR(HookOf(self).gatherer);
  Py_CLEAR(HookOf(self).view);
  return 0;
}

inline void GradientHookFree(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  GradientHookClear(self);
  delete HookOf(self).known;
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

// gradient_hook(otherwise, gatherer): with nothing pending and one pass left.
inline py::object MakeGradientHook(const py::object& otherwise, const py::object& gatherer) {
  if (Py_TYPE(gatherer.ptr()) != gatherer_type) throw py::type_error("a gatherer is wanted");
  auto* const hook = PyObject_GC_New(GradientHook, gradient_hook_type);
  if (hook == nullptr) throw py::error_already_set();
  hook->call = GradientHookCall;
  hook->left = 1;
  hook->pending = Py_NewRef(Py_None);
  hook->otherwise = Py_NewRef(otherwise.ptr());
  hook->gatherer = Py_NewRef(gatherer.ptr());
  hook->view = Py_NewRef(Py_None);
  hook->known = nullptr;
  PyObject_GC_Track(hook);
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(hook));
}

inline void DefineGradientHook(py::module_& module) {
  static PyMethodDef methods[] = {
      {"remember", Method(GradientHookRemember), METH_FASTCALL,
       "remember(request, gradient, process_set): the call that reduces the gradient in place"},
      {"forget", GradientHookForget, METH_NOARGS, "Goes the long way the next time."},
      {nullptr, nullptr, 0, nullptr}};
  static PyMemberDef places[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(GradientHook, call), READONLY, nullptr},
      {"left", T_LONG, offsetof(GradientHook, left), 0, nullptr},
      {"pending", T_OBJECT, offsetof(GradientHook, pending), 0, nullptr},
      {"view", T_OBJECT, offsetof(GradientHook, view), 0, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  gradient_hook_type =
      MakeType("horon._core.GradientHook", sizeof(GradientHook), GradientHookFree, methods,
               {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                {Py_tp_traverse, reinterpret_cast<void*>(GradientHookTraverse)},
                {Py_tp_clear, reinterpret_cast<void*>(GradientHookClear)},
                {Py_tp_members, places}},
               Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC);
  module.def("gradient_hook", &MakeGradientHook, py::arg("otherwise"), py::arg("gatherer"));
}

}  // namespace horon_python

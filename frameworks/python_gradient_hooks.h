// What GradientReducer (horon/torch/reducer.py) does with all of its GradientHooks at each step,
// and in Python would cost a microsecond a parameter.
//
// Used by bindings.cc only, with the GIL held; WaitForAll releases it where it blocks.
#pragma once

#include <unordered_set>

#include "frameworks/python_gradient_hook.h"

namespace horon_python {

// Of a dict whose values are GradientHooks, or TypeError; f runs no Python code.
template <typename F>
void ForEachHook(const py::dict& hooks, F&& f) {
  for (const auto& [parameter, hook] : hooks) {
    if (Py_TYPE(hook.ptr()) != gradient_hook_type)
      throw py::type_error("a dict of gradient hooks is wanted");
    f(HookOf(hook.ptr()));
  }
}

// How many have something under way.
inline size_t CountPending(const py::dict& hooks) {
  size_t count = 0;
  ForEachHook(hooks, [&](const GradientHook& hook) { count += hook.pending != Py_None; });
  return count;
}

// Whether none has been called since it was set to so many passes.
inline bool Untouched(const py::dict& hooks, long passes) {
  bool untouched = true;
  ForEachHook(hooks, [&](const GradientHook& hook) {
    untouched = untouched && hook.pending == Py_None && hook.left == passes;
  });
  return untouched;
}

// What is under way, each once: members of a group have the same, and those that are gathered, to
// which nothing is added any more. The hooks have nothing under way afterwards, and so many passes
// left.
inline py::list TakePending(const py::dict& hooks, long passes) {
  py::list taken;
  std::unordered_set<PyObject*> seen;
  PyObject* last = nullptr;
  ForEachHook(hooks, [&](GradientHook& hook) {
    hook.left = passes;
    if (hook.pending == Py_None) return;
    const auto pending =
        py::reinterpret_steal<py::object>(std::exchange(hook.pending, Py_NewRef(Py_None)));
    if (pending.ptr() == last || !seen.insert(pending.ptr()).second) return;
    last = pending.ptr();
    if (Py_TYPE(last) == gathered_type) Close(GathererOf(hook.gatherer));
    taken.append(pending);
  });
  return taken;
}

// Blocks until all are done, whatever becomes of them; the first Exception, or None. What is no
// Exception, such as KeyboardInterrupt, breaks it off.
inline py::object WaitForAll(const py::list& pending) {
  py::object failure = py::none();
  for (const py::handle one : pending) {
    try {
      if (Py_TYPE(one.ptr()) == gathered_type) {
        reinterpret_cast<Gathered*>(one.ptr())->work.Wait(-1);
      } else {
        one.attr("wait")();
      }
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;
      if (!failure.is_none()) continue;
      failure = error.value();
      if (error.trace()) PyException_SetTraceback(failure.ptr(), error.trace().ptr());
    }
  }
  return failure;
}

// Whether two lists hold the same objects in the same order.
inline bool SameObjects(const py::list& one, const py::list& other) {
  return one.size() == other.size() &&
         std::equal(one.begin(), one.end(), other.begin(),
                    [](py::handle a, py::handle b) { return a.is(b); });
}

inline void DefineGradientHooks(py::module_& module) {
  DefineGatherer(module);
  DefineGradientHook(module);
  module.def("count_pending", &CountPending, py::arg("hooks"));
  module.def("untouched", &Untouched, py::arg("hooks"), py::arg("passes"));
  module.def("take_pending", &TakePending, py::arg("hooks"), py::arg("passes"));
  module.def("wait_for_all", &WaitForAll, py::arg("pending"));
  module.def("same_objects", &SameObjects, py::arg("one"), py::arg("other"));
}

}  // namespace horon_python

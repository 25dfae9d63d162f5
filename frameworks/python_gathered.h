// Gatherer: what the hooks of one reducer share: the gradients that they have started since the last
// step, each by itself, as one work. A Gathered is that work, what each of its hooks has under way.
//
// A model has hundreds of gradients: a work, a handle and a wait for each cost more than handing
// them over. Plain CPython types. Used by python_gradient_hook.h, with the GIL held.
#pragma once

#include "frameworks/python_repeat.h"

namespace horon_python {

struct Gathered {
  PyObject_HEAD;
  PyWork work;
  PyObject* tensors;           // list: what lives until it is done
  PyObject *set, *set_number;  // of the first; when it started, the set had that number
  std::vector<void*> places;   // of the tensors' elements
  bool open;
};

struct Gatherer {
  PyObject_HEAD;
  Gathered* open;            // null: nothing has started since
  std::vector<void*> apart;  // places that were looked at, no two of which are the same
  CallForesight next;
};

inline PyTypeObject *gathered_type = nullptr, *gatherer_type = nullptr;

inline Gatherer& GathererOf(PyObject* self) { return *reinterpret_cast<Gatherer*>(self); }

inline Gathered* MakeGathered(horon_work* work, py::object tensors, const Known& first) {
  auto* const made = PyObject_New(Gathered, gathered_type);
  if (made == nullptr) {
    horon_work_close(work);
    const PyWork dropped(work, std::move(tensors));
    throw py::error_already_set();
  }
  made->tensors = Py_NewRef(tensors.ptr());
  new (&made->work) PyWork(work, std::move(tensors));
  new (&made->places) std::vector<void*>;
  made->set = Py_NewRef(first.set.ptr());
  made->set_number = Py_NewRef(first.set_number.ptr());
  made->open = true;
  return made;
}

inline void Close(Gathered& gathered) {
  if (std::exchange(gathered.open, false)) horon_work_close(gathered.work.get());
}

// What starts from now on belongs to the next step.
inline void Close(Gatherer& gatherer) {
  if (gatherer.open == nullptr) return;
  Close(*gatherer.open);
  Py_DECREF(reinterpret_cast<PyObject*>(std::exchange(gatherer.open, nullptr)));
}

// Whether the tensor is part of what is open now; else nothing is.
inline bool Joined(Gatherer& gatherer, horon_tensor* what, PyObject* tensor, void* place) {
  if (gatherer.open == nullptr) return false;
  if (PyList_Append(gatherer.open->tensors, tensor) != 0) throw py::error_already_set();
  horon_work* work = gatherer.open->work.get();
  const int code = horon_start_into(what, place, place, &work);
  if (code == HORON_OK) return true;
  if (code != HORON_ABORTED) CheckSubmit(code);
  Close(gatherer);  // perhaps only it is over: it may be of a job before this one
  return false;
}

// Starts on a tensor in place; what it is part of.
inline py::object StartInto(Gatherer& gatherer, const Known& known, PyObject* tensor, void* place) {
  horon_tensor* const what = known.members[0].tensor;
  if (!Joined(gatherer, what, tensor, place)) {
    py::list tensors;
    tensors.append(py::handle(tensor));
    horon_work* work = nullptr;
    CheckSubmit(horon_start_into(what, place, place, &work));
    gatherer.open = MakeGathered(work, std::move(tensors), known);
  }
  gatherer.open->places.push_back(place);
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(gatherer.open));
}

// SameSet, asked of Python once a step.
inline bool SameSetAs(const Gatherer& gatherer, const Known& known) {
  const Gathered* const open = gatherer.open;
  const bool same = open != nullptr && open->set == known.set.ptr() &&
                    open->set_number == known.set_number.ptr();
  return same || SameSet(known);
}

// holds(place): whether something at this address has started.
inline PyObject* GathererHolds(PyObject* self, PyObject* place) {
  void* const looked_for = PyLong_AsVoidPtr(place);
  if (looked_for == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  const Gathered* const open = GathererOf(self).open;
  const bool holds = open != nullptr && std::find(open->places.begin(), open->places.end(),
                                                  looked_for) != open->places.end();
  return PyBool_FromLong(holds ? 1 : 0);
}

// common_place(): where two of those started lie; 0 if each has its own place. In a steady job they
// lie where they lay.
inline PyObject* GathererCommonPlace(PyObject* self, PyObject*) {
  Gatherer& gatherer = GathererOf(self);
  if (gatherer.open == nullptr || gatherer.open->places == gatherer.apart)
    return PyLong_FromLong(0);
  return InPython([&] {
    std::vector<void*> places = gatherer.open->places;
    std::sort(places.begin(), places.end());
    const auto twice = std::adjacent_find(places.begin(), places.end());
    if (twice != places.end()) return PyLong_FromVoidPtr(*twice);
    gatherer.apart = gatherer.open->places;
    return PyLong_FromLong(0);
  });
}

inline void GatheredFree(PyObject* self) {
  auto* const gathered = reinterpret_cast<Gathered*>(self);
  PyTypeObject* const type = Py_TYPE(self);
  Close(*gathered);
  gathered->work.~PyWork();  // a pending one keeps the tensors itself
  Py_DECREF(gathered->tensors);
  Py_DECREF(gathered->set);
  Py_DECREF(gathered->set_number);
  gathered->places.~vector();
  PyObject_Free(self);
  Py_DECREF(type);
}

inline void GathererFree(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  Close(GathererOf(self));
  GathererOf(self).apart.~vector();
  GathererOf(self).next.~CallForesight();
  PyObject_Free(self);
  Py_DECREF(type);
}

inline py::object MakeGatherer() {
  auto* const made = PyObject_New(Gatherer, gatherer_type);
  if (made == nullptr) throw py::error_already_set();
  made->open = nullptr;
  new (&made->apart) std::vector<void*>;
  new (&made->next) CallForesight;
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(made));
}

inline void DefineGatherer(py::module_& module) {
  static PyMethodDef of_gathered[] = {{nullptr, nullptr, 0, nullptr}};
  static PyMethodDef of_gatherer[] = {
      {"holds", GathererHolds, METH_O, "Whether something at this address has started."},
      {"common_place", GathererCommonPlace, METH_NOARGS,
       "Where two of those started lie; 0 if each has its own place."},
      {nullptr, nullptr, 0, nullptr}};
  gathered_type = MakeType("horon._core.Gathered", sizeof(Gathered), GatheredFree, of_gathered);
  gatherer_type = MakeType("horon._core.Gatherer", sizeof(Gatherer), GathererFree, of_gatherer);
  module.def("gatherer", &MakeGatherer);
}

}  // namespace horon_python

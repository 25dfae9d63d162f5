// PyGraph: a gossip graph (horon_graph) for Python.
//
// Used by bindings.cc only, on any Python thread, with the GIL held. Immutable once made.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "frameworks/python_work.h"
#include "horon/horon.h"

namespace horon_python {

class PyGraph {
 public:
  PyGraph(const std::string& spec, int size) {
    horon_graph* made = nullptr;
    CheckSubmit(horon_graph_make(spec.c_str(), size, &made));
    graph_.reset(made);
  }

  int64_t period() const { return horon_graph_period(graph_.get()); }

  // [(to, from, weight), ...], own weights included.
  py::list Round(int64_t round) const {
    if (round < 0) throw py::value_error("rounds count from 0");
    py::list entries;
    const auto visit = [](int to, int from, double weight, void* user) {
      static_cast<py::list*>(user)->append(py::make_tuple(to, from, weight));
    };
    horon_graph_round(graph_.get(), round, visit, &entries);
    return entries;
  }

  double Contraction(int64_t first, int64_t rounds) const {
    const py::gil_scoped_release released;
    return horon_graph_contraction(graph_.get(), first, rounds);
  }

  int64_t RoundsFor(int64_t first, double tolerance, int64_t most) const {
    const py::gil_scoped_release released;
    return horon_graph_rounds_for(graph_.get(), first, tolerance, most);
  }

 private:
  struct Release {
    void operator()(horon_graph* graph) const { horon_graph_release(graph); }
  };
  std::unique_ptr<horon_graph, Release> graph_;
};

inline void DefineGraph(py::module_& module) {
  py::class_<PyGraph>(module, "Graph")
      .def(py::init<const std::string&, int>(), py::arg("spec"), py::arg("size"))
      .def_property_readonly("period", &PyGraph::period)
      .def("round", &PyGraph::Round, py::arg("round"))
      .def("contraction", &PyGraph::Contraction, py::arg("first"), py::arg("rounds"))
      .def("rounds_for", &PyGraph::RoundsFor, py::arg("first"), py::arg("tolerance"),
           py::arg("most"));
}

}  // namespace horon_python

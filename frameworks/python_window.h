// PyWindow: a window (horon_window) for Python.
//
// Used by bindings.cc only, on any Python thread, with the GIL held but while all ranks make or
// free a window together.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frameworks/python_request.h"
#include "frameworks/python_work.h"
#include "horon/horon.h"

namespace horon_python {

class PyWindow {
 public:
  // `graph`: of a window that mixes in rounds; else empty. `values` is the address of a contiguous
  // tensor on `device`, which `keep` keeps and `stream` makes.
  PyWindow(const py::str& name, int dtype, int device, const std::vector<int64_t>& shape,
           uintptr_t values, uintptr_t stream, const std::vector<int>& in,
           const std::vector<int>& out, bool zero, bool gets, const std::string& graph,
           int64_t first_round, bool push_sum, py::object keep)
      : keep_(std::move(keep)) {
    horon_window_spec spec{};
    spec.struct_bytes = sizeof(spec);
    spec.name = CText(name.ptr(), "a window's name");
    spec.dtype = dtype;
    spec.device = device;
    spec.shape = shape.data();
    spec.ndim = static_cast<int>(shape.size());
    spec.values = reinterpret_cast<void*>(values);
    spec.stream = reinterpret_cast<void*>(stream);
    spec.in = in.data();
    spec.in_count = static_cast<int>(in.size());
    spec.out = out.data();
    spec.out_count = static_cast<int>(out.size());
    spec.zero = zero ? 1 : 0;
    spec.no_gets = gets ? 0 : 1;
    spec.graph = graph.empty() ? nullptr : graph.c_str();
    spec.first_round = first_round;
    spec.push_sum = push_sum ? 1 : 0;
    horon_window* made = nullptr;
    CheckReleased([&] { return horon_window_create(&spec, &made); });
    window_.reset(made);
  }

  void Free() {
    CheckReleased([this] { return horon_window_free(window_.get()); });
    keep_ = py::none();
  }

  std::unique_ptr<PyWork> Start(int act, const std::vector<int>& ranks,
                                const std::vector<double>& weights, double self_weight,
                                bool push_sum, bool reset, bool with_mutex, bool if_asked,
                                uintptr_t input, uintptr_t output, uintptr_t stream,
                                bool will_wait, py::object keep) {
    DroppedWorks().Sweep();
    horon_window_order order{};
    order.struct_bytes = sizeof(order);
    order.act = act;
    order.ranks = ranks.data();
    order.weights = weights.size() == ranks.size() ? weights.data() : nullptr;
    order.count = static_cast<int>(ranks.size());
    order.self_weight = self_weight;
    order.push_sum = push_sum ? 1 : 0;
    order.reset = reset ? 1 : 0;
    order.with_mutex = with_mutex ? 1 : 0;
    order.if_asked = if_asked ? 1 : 0;
    order.input = reinterpret_cast<const void*>(input);
    order.output = reinterpret_cast<void*>(output);
    order.stream = reinterpret_cast<void*>(stream);
    horon_work* work = nullptr;
    CheckSubmit(horon_window_start(window_.get(), &order, will_wait ? 1 : 0, &work));
    return std::make_unique<PyWork>(work, std::move(keep));
  }

  int64_t Deliveries(int from) const { return horon_window_deliveries(window_.get(), from); }
  void Ask(bool wanted) { horon_window_ask(window_.get(), wanted ? 1 : 0); }
  double share() const { return horon_window_share(window_.get()); }
  void SetShare(double share) { CheckSubmit(horon_window_set_share(window_.get(), share)); }
  int64_t round() const { return horon_window_round(window_.get()); }

 private:
  struct Release {
    void operator()(horon_window* window) const { horon_window_release(window); }
  };
  std::unique_ptr<horon_window, Release> window_;
  py::object keep_;
};

inline void RefuseWindow(const py::str& name, const std::string& why) {
  const char* const text = CText(name.ptr(), "a window's name");
  CheckReleased([&] { return horon_window_refuse(text, why.c_str()); });
}

inline void DefineWindow(py::module_& module) {
  module.def("refuse_window", &RefuseWindow);
  py::class_<PyWindow>(module, "Window")
      .def(py::init<const py::str&, int, int, const std::vector<int64_t>&, uintptr_t, uintptr_t,
                    const std::vector<int>&, const std::vector<int>&, bool, bool,
                    const std::string&, int64_t, bool, py::object>())
      .def("free", &PyWindow::Free)
      .def("start", &PyWindow::Start)
      .def("deliveries", &PyWindow::Deliveries)
      .def("ask", &PyWindow::Ask)
      .def_property_readonly("round", &PyWindow::round)
      .def_property("share", &PyWindow::share, &PyWindow::SetShare);
}

}  // namespace horon_python

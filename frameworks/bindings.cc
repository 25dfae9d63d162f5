// The Python module horon._core: horon.h and nothing else, as thin as it can be.
//
// Called by the package frameworks/horon on any Python thread. The GIL is released wherever the C
// API may block. Failures become exceptions of the classes in horon.errors.
#include <pybind11/pybind11.h>

#include <memory>
#include <utility>
#include <vector>

#include "frameworks/python_gradient_hooks.h"
#include "frameworks/python_graph.h"
#include "frameworks/python_memory.h"
#include "frameworks/python_repeated.h"
#include "frameworks/python_request.h"
#include "frameworks/python_window.h"
#include "frameworks/python_work.h"
#include "horon/horon.h"

namespace {

namespace py = pybind11;
using horon_python::CheckReleased;
using horon_python::CheckSubmit;
using horon_python::DroppedWorks;
using horon_python::ParsedRequest;
using horon_python::PyWork;

std::unique_ptr<PyWork> Submit(const py::handle& fields, py::object keep) {
  DroppedWorks().Sweep();
  ParsedRequest parsed;
  parsed.Parse(fields.ptr());
  horon_work* work = nullptr;
  CheckSubmit(horon_submit(&parsed.request(), &work));
  return std::make_unique<PyWork>(work, std::move(keep));
}

std::unique_ptr<PyWork> SubmitGroup(const py::list& members, const py::str& group,
                                    py::object keep) {
  DroppedWorks().Sweep();
  std::vector<ParsedRequest> parsed(members.size());
  std::vector<horon_request> requests;
  for (size_t i = 0; i < members.size(); ++i) {
    parsed[i].Parse(PyList_GET_ITEM(members.ptr(), static_cast<Py_ssize_t>(i)));
    requests.push_back(parsed[i].request());
  }
  horon_work* work = nullptr;
  CheckSubmit(horon_submit_group(requests.data(), static_cast<int>(requests.size()),
                                 horon_python::CText(group.ptr(), "a group's name"), &work));
  return std::make_unique<PyWork>(work, std::move(keep));
}

// Submits and waits on this thread. `keep` matters when a signal ends the wait: the runtime then
// still uses the tensors.
std::unique_ptr<PyWork> Run(const py::handle& fields, py::object keep) {
  DroppedWorks().Sweep();
  ParsedRequest parsed;
  parsed.Parse(fields.ptr());
  horon_work* work = nullptr;
  CheckSubmit(horon_begin(&parsed.request(), &work));
  auto pending = std::make_unique<PyWork>(work, std::move(keep));
  pending->Wait(-1);
  if (parsed.request().device >= 0) {
    const auto stream = reinterpret_cast<uintptr_t>(parsed.request().stream);
    pending->HoldBack(stream, stream);
  }
  return parsed.request().output == nullptr ? std::move(pending) : nullptr;
}

std::unique_ptr<PyWork> Join() {
  horon_work* work = nullptr;
  CheckSubmit(horon_join(&work));
  return std::make_unique<PyWork>(work, py::none());
}

template <int (*kFunction)(const int*, int, int*)>
int MakeProcessSet(const py::tuple& ranks) {
  std::vector<int> numbers;
  for (const py::handle& rank : ranks) numbers.push_back(rank.cast<int>());
  int id = -1;
  CheckReleased([&] { return kFunction(numbers.data(), static_cast<int>(numbers.size()), &id); });
  return id;
}

void RemoveProcessSet(int id) {
  CheckReleased([id] { return horon_remove_process_set(id); });
}

py::object ProcessSetRanks(int id) {
  const int size = horon_process_set_size(id);
  if (size < 0) return py::none();
  std::vector<int> ranks(static_cast<size_t>(size));
  CheckSubmit(horon_process_set_ranks(id, ranks.data()));
  py::list result;
  for (const int rank : ranks) result.append(rank);
  return result;
}

template <int (*kFunction)()>
void Blocking() {
  CheckReleased([] { return kFunction(); });
}

py::dict Counters() {
  py::dict counters;
  const auto visit = [](const char* name, int64_t value, void* user) {
    (*static_cast<py::dict*>(user))[horon_python::Text(name)] = value;
  };
  horon_counters(visit, &counters);
  return counters;
}

py::list Knobs() {
  py::list knobs;
  const auto visit = [](const char* name, int horovod, const char* meaning, void* user) {
    static_cast<py::list*>(user)->append(py::make_tuple(name, horovod != 0, meaning));
  };
  horon_knobs(visit, &knobs);
  return knobs;
}

// The runtime may have to wait for other ranks, and for the disk.
void StartTimeline(const std::string& path, bool mark_cycles, uint64_t first, uint64_t end) {
  CheckReleased(
      [&] { return horon_start_timeline(path.c_str(), mark_cycles ? 1 : 0, first, end); });
}

bool NoteInTimeline(const py::str& row, const py::str& activity, int64_t begun, int64_t ended) {
  return horon_note_in_timeline(horon_python::Utf8(row).c_str(),
                                horon_python::Utf8(activity).c_str(), begun, ended) != 0;
}

bool AwaitInquiry() {
  const py::gil_scoped_release released;
  return horon_await_inquiry() != 0;
}

py::dict GpuParts() {
  py::dict parts;
  const auto visit = [](const char* part, int version, const char* text, void* user) {
    (*static_cast<py::dict*>(user))[part] = py::make_tuple(version, horon_python::Text(text));
  };
  horon_gpu_parts(visit, &parts);
  return parts;
}

void DefineQueries(py::module_& module) {
  module.def("version", &horon_version);
  module.def("is_initialized", [] { return horon_is_initialized() != 0; });
  module.def("rank", &horon_rank);
  module.def("size", &horon_size);
  module.def("local_rank", &horon_local_rank);
  module.def("local_size", &horon_local_size);
  module.def("cross_rank", &horon_cross_rank);
  module.def("cross_size", &horon_cross_size);
  module.def("is_homogeneous", [] { return horon_is_homogeneous() == 1; });
  module.def("controller", &horon_controller);
  module.def("transport", &horon_transport);
  module.def("mpi_available", [] {
    const py::gil_scoped_release released;  // waits for an init, which may run signal handlers
    return horon_mpi_available() == 1;
  });
  module.def("cuda_built", [] { return horon_cuda_built() == 1; });
  module.def("gpu_parts", &GpuParts);
  module.def("counter", &horon_counter);
  module.def("counters", &Counters);
  module.def("count", [](const py::str& name, int64_t n) {
    horon_count(horon_python::Utf8(name).c_str(), n);
  });
  module.def("knobs", &Knobs);
  module.def("check_reduction",
             [](const std::string& spec) { CheckSubmit(horon_check_reduction(spec.c_str())); });
  module.def("memory_bytes", &horon_memory_bytes);
  module.def("gossip_timeout_ms", &horon_gossip_timeout_ms);
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C API of Horon; use horon or horon.torch.";
  module.attr("REQUEST_FIELDS") = horon_python::kFields;
  module.def("set_error_factory",
             [](py::object factory) { horon_python::error_factory = factory.release().ptr(); });
  module.def("init", &Blocking<&horon_init>);
  module.def("shutdown", &Blocking<&horon_shutdown>);
  module.def("abandon",
             [](const py::str& what) { horon_abandon(horon_python::Utf8(what).c_str()); });
  module.def("describe", &horon_describe);
  module.def("start_timeline", &StartTimeline, py::arg("path"), py::arg("mark_cycles"),
             py::arg("first_step"), py::arg("end_step"));
  module.def("note_in_timeline", &NoteInTimeline, py::arg("row"), py::arg("activity"),
             py::arg("begun"), py::arg("ended"));
  module.def("await_inquiry", &AwaitInquiry);
  module.def("tell_doing",
             [](const py::str& text) { horon_tell_doing(horon_python::Utf8(text).c_str()); });
  module.def("hands_over", &horon_hands_over);
  module.def("takes_back", &horon_takes_back);
  module.def("stop_timeline", &Blocking<&horon_stop_timeline>);
  DefineQueries(module);
  horon_python::DefineRepeat(module);
  horon_python::DefineRepeated(module);
  horon_python::DefineGradientHooks(module);
  horon_python::DefineGraph(module);
  horon_python::DefineWindow(module);
  horon_python::DefineMemory(module);
  module.def("add_process_set", &MakeProcessSet<&horon_add_process_set>);
  module.def("form_process_set", &MakeProcessSet<&horon_form_process_set>);
  module.def("form_process_set_in_time", &MakeProcessSet<&horon_form_process_set_in_time>);
  module.def("remove_process_set", &RemoveProcessSet);
  module.def("process_set_size", &horon_process_set_size);
  module.def("process_set_rank", &horon_process_set_rank);
  module.def("process_set_ranks", &ProcessSetRanks);
  module.def("submit", &Submit, py::arg("request"), py::arg("keep"));
  module.def("submit_group", &SubmitGroup, py::arg("requests"), py::arg("group"), py::arg("keep"));
  module.def("join", &Join);
  module.def("run", &Run, py::arg("request"), py::arg("keep"));
  py::class_<PyWork>(module, "Work")
      .def("done", &PyWork::done)
      .def("wait", &PyWork::Wait, py::arg("timeout_ms") = -1)
      .def("hold_back", &PyWork::HoldBack, py::arg("stream"), py::arg("lender"))
      .def_property_readonly("message", &PyWork::message)
      .def("output", &PyWork::Output, py::arg("index"), py::arg("dtype"), py::arg("device") = -1)
      .def("received_splits", &PyWork::ReceivedSplits, py::arg("index"));
}

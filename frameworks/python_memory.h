// PyMemory: memory that ranks make together (horon_share_memory), as a Python buffer.
//
// Used by bindings.cc only, with the GIL held but while the ranks make it.
#pragma once

#include <pybind11/pybind11.h>

#include "frameworks/python_work.h"
#include "horon/horon.h"

namespace horon_python {

class PyMemory {
 public:
  PyMemory(int64_t bytes, int process_set) : bytes_(bytes) {
    CheckReleased(
        [&] { return horon_share_memory(bytes_, process_set, &memory_, &data_, &shared_); });
  }
  ~PyMemory() { horon_shared_memory_release(memory_); }
  PyMemory(const PyMemory&) = delete;
  PyMemory& operator=(const PyMemory&) = delete;

  bool shared() const { return shared_ != 0; }
  py::buffer_info Buffer() const {
    return {static_cast<uint8_t*>(data_), static_cast<py::ssize_t>(bytes_)};
  }

 private:
  int64_t bytes_;
  horon_shared_memory* memory_ = nullptr;
  void* data_ = nullptr;
  int shared_ = 0;
};

inline void DefineMemory(py::module_& module) {
  py::class_<PyMemory>(module, "SharedMemory", py::buffer_protocol())
      .def(py::init<int64_t, int>(), py::arg("bytes"), py::arg("process_set"))
      .def_property_readonly("shared", &PyMemory::shared)
      .def_buffer(&PyMemory::Buffer);
}

}  // namespace horon_python

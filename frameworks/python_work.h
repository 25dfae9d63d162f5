// PyWork: one reference to a horon_work with the Python tensors that it borrows; the errors that
// submitting and waiting raise; and the way outputs reach a framework without a copy (DLPack).
//
// Used by bindings.cc only, on any Python thread, with the GIL held. Wait releases the GIL; on the
// main thread it looks for signals meanwhile, so that Ctrl-C and others are seen.
#pragma once

#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "horon/horon.h"

namespace horon_python {

namespace py = pybind11;

// Set by horon.errors: (code, sentence, at_wait) -> exception. Leaked: modules may outlive main().
inline PyObject* error_factory = nullptr;

// What the library says may hold bytes that are no UTF-8: a variable's value, a file's name.
inline py::str Text(const char* said) {
  const auto bytes = static_cast<Py_ssize_t>(std::strlen(said));
  PyObject* const text = PyUnicode_DecodeUTF8(said, bytes, "replace");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

// The other way round: Python keeps such bytes as halves of surrogates, which UTF-8 has not.
inline std::string Utf8(const py::str& text) {
  PyObject* const bytes = PyUnicode_AsEncodedString(text.ptr(), "utf-8", "replace");
  if (bytes == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(bytes);
}

[[noreturn]] inline void ThrowError(int code, const char* message, bool at_wait) {
  if (error_factory == nullptr) throw std::runtime_error(message);
  const py::object error = py::handle(error_factory)(code, Text(message), at_wait);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

inline void CheckSubmit(int code) {
  if (code != HORON_OK) ThrowError(code, horon_last_error(), false);
}

// Not 0: a handler has raised something.
inline int RunSignalHandlers() {
  const PyGILState_STATE held = PyGILState_Ensure();
  horon_look_works();  // a handler may be what the other ranks wait for
  const int raised = PyErr_CheckSignals();
  PyGILState_Release(held);
  return raised;
}

// The code of a call that may block: without the GIL, and broken off by what a handler raises,
// which Python runs on the main thread only.
template <typename F>
int Released(F&& f) {
  static thread_local const bool main = syscall(SYS_gettid) == getpid();
  int code;
  {
    const py::gil_scoped_release released;
    const horon_look outer = horon_set_look(main ? &RunSignalHandlers : nullptr);
    code = f();
    horon_set_look(outer);
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return code;
}

template <typename F>
void CheckReleased(F&& f) {
  CheckSubmit(Released(std::forward<F>(f)));
}

// Whether neither the runtime nor a GPU uses the tensors any more.
inline bool Over(const horon_work* work) {
  return horon_work_peek(work) != 0 && horon_work_settled(work) != 0;
}

// Works that Python dropped while they were pending, with the tensors they still use.
class Orphans {
 public:
  void Add(horon_work* work, py::object keep) { works_.emplace_back(work, std::move(keep)); }
  void Sweep() {
    if (works_.empty()) return;
    std::vector<Pair> pending, finished;
    for (Pair& pair : works_) {
      (Over(pair.first) ? finished : pending).push_back(std::move(pair));
    }
    works_ = std::move(pending);
    for (const Pair& pair : finished) horon_work_release(pair.first);
  }  // the tensors go last: their destructors may run Python code

 private:
  using Pair = std::pair<horon_work*, py::object>;
  std::vector<Pair> works_;
};

inline Orphans& DroppedWorks() {
  static Orphans* const orphans = new Orphans;  // leaked: it may hold Python objects at exit
  return *orphans;
}

// DLPack's ABI, as torch.from_dlpack reads it (version 0.8), and as its exchange API writes it.
struct DlTensor {
  void* memory;
  int32_t device_type, device_id, ndim;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  int64_t* shape;
  int64_t* strides;  // null: row by row
  uint64_t byte_offset;
};
struct DlOwnedTensor {
  DlTensor tensor;
  void* owner;
  void (*deleter)(DlOwnedTensor*);
};
inline constexpr int32_t kDlCpu = 1, kDlCuda = 2;

struct DlType {
  uint8_t code, bits;
};
inline constexpr uint8_t kDlInt = 0, kDlUint = 1, kDlFloat = 2, kDlBfloat = 4, kDlBool = 6;
inline constexpr std::array<DlType, 10> kDlTypes = {{// by horon_dtype
                                                     {kDlUint, 8},
                                                     {kDlInt, 8},
                                                     {kDlInt, 16},
                                                     {kDlInt, 32},
                                                     {kDlInt, 64},
                                                     {kDlFloat, 16},
                                                     {kDlBfloat, 16},
                                                     {kDlFloat, 32},
                                                     {kDlFloat, 64},
                                                     {kDlBool, 8}}};

inline void DeleteDlTensor(DlOwnedTensor* owned) {
  horon_work_release(static_cast<horon_work*>(owned->owner));
  delete owned;
}

// Runs when the capsule dies; whoever took the tensor has renamed it and deletes it himself.
inline void DropCapsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;
  DeleteDlTensor(static_cast<DlOwnedTensor*>(PyCapsule_GetPointer(capsule, "dltensor")));
}

// One reference to a horon_work, and the tensors that it borrows.
class PyWork {
 public:
  PyWork(horon_work* work, py::object keep) : work_(work), keep_(std::move(keep)) {}
  PyWork(const PyWork&) = delete;
  PyWork& operator=(const PyWork&) = delete;
  ~PyWork() {
    if (keep_.is_none() || Over(work_)) {
      horon_work_release(work_);
    } else {
      DroppedWorks().Add(work_, std::move(keep_));
    }
  }

  horon_work* get() const { return work_; }
  bool done() const { return horon_work_done(work_) != 0; }
  py::str message() const { return Text(horon_work_message(work_)); }

  // True once finished well, false when the time is over; raises the work's error.
  bool Wait(int timeout_ms) {
    int code = horon_work_peek(work_) ? horon_work_wait(work_, 0) : HORON_WAIT_TIMEOUT;
    if (code == HORON_WAIT_TIMEOUT && timeout_ms != 0)
      code = Released([&] { return horon_work_wait(work_, timeout_ms); });
    if (code == HORON_WAIT_TIMEOUT) return false;
    if (Over(work_)) keep_ = py::none();  // a stuck runtime still has the tensors
    // Not done, and failed all the same: the runtime is stuck, and the wait says so itself.
    const char* why = horon_work_peek(work_) ? horon_work_message(work_) : horon_last_error();
    if (code != HORON_OK) ThrowError(code, why, true);
    return true;
  }

  // After Wait, for a tensor of a GPU: this stream of the framework waits for the device. The
  // framework hands memory on in the order of the stream that the tensors came from: where this is
  // another one, they are kept until the device is done.
  void HoldBack(uintptr_t stream, uintptr_t lender) {
    if (horon_work_peek(work_) == 0) return;  // the wait was ended, or the runtime is stuck
    CheckSubmit(horon_work_hold_back(work_, reinterpret_cast<void*>(stream)));
    if (stream == lender) keep_ = py::none();
  }

  // Output `index` as a DLPack capsule that shares the work's memory and keeps the work alive.
  py::object Output(int index, int dtype, int device) const {
    if (horon_work_peek(work_) == 0) throw py::index_error("the work is still pending");
    const int64_t* shape = horon_work_output_shape(work_, index);
    const int ndim = horon_work_output_ndim(work_, index);
    if (ndim < 0 || (shape == nullptr && ndim > 0)) {
      throw py::index_error("the work has no such output");
    }
    const DlType type = kDlTypes.at(static_cast<size_t>(dtype));
    const DlTensor tensor = {horon_work_output(work_, index),
                             device < 0 ? kDlCpu : kDlCuda,
                             device < 0 ? 0 : device,
                             ndim,
                             type.code,
                             type.bits,
                             1,
                             const_cast<int64_t*>(shape),
                             nullptr,
                             0};
    horon_work_retain(work_);
    auto* owned = new DlOwnedTensor{tensor, work_, DeleteDlTensor};
    return py::reinterpret_steal<py::object>(PyCapsule_New(owned, "dltensor", DropCapsule));
  }

  py::tuple ReceivedSplits(int index) const {
    int count = 0;
    const int64_t* splits = horon_work_received_splits(work_, index, &count);
    py::tuple result(static_cast<size_t>(splits == nullptr ? 0 : count));
    for (size_t i = 0; i < result.size(); ++i) result[i] = splits[i];
    return result;
  }

 private:
  horon_work* work_;
  py::object keep_;
};

}  // namespace horon_python

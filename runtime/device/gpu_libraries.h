// The libraries that the CUDA plugin opens at run time, NCCL and cuBLAS: where they are looked for,
// and what was found. Called once per process each, when the first tensor of a GPU is submitted.
#pragma once

#include <string>
#include <vector>

namespace horon {

// A library that is opened at run time: where it was found, or why it was not.
struct FoundLibrary {
  int version = 0;  // as the library counts; 0: not found
  std::string text;
};

// Where to look for the libraries, beside what the process has open already.
struct GpuLibraryPaths {
  std::string nccl, cublas;   // HORON_NCCL_LIB, HORON_CUBLAS_LIB
  std::string python_prefix;  // of Pythons whose packages may bring them, ':' between
};

// A library that is open for good; without a handle `why` it is not.
struct OpenedLibrary {
  void* handle = nullptr;
  std::string why;

  // Null where there is no such symbol.
  void* Address(const char* name) const;
  // Sets *function; where there is none, adds the name to *missing.
  template <typename Fn>
  void Find(const char* name, Fn** function, std::string* missing) const {
    *function = reinterpret_cast<Fn*>(Address(name));
    if (*function == nullptr) *missing += (missing->empty() ? "" : ", ") + std::string(name);
  }
};

// In this order: the process's (a framework's, so that there is one only), `chosen` by the user,
// who gets no other one, those that `in_packages` matches among the Pythons' packages, the
// system's.
OpenedLibrary OpenGpuLibrary(const std::vector<std::string>& names, const std::string& chosen,
                             const std::string& python_prefix, const std::string& in_packages);
// The file that a symbol comes from.
std::string FileOf(void* symbol);

}  // namespace horon

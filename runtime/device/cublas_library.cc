#include "runtime/device/cublas_library.h"

namespace horon {
namespace {

constexpr const char* kInstall =
    "; install it (pip install nvidia-cublas, or nvidia-cublas-cu12 where the driver is one of "
    "CUDA 12), or set HORON_CUBLAS_LIB to your libcublas.so";

std::string FindAll(const OpenedLibrary& library, CublasLibrary& cublas) {
  std::string missing;
  library.Find("cublasCreate_v2", &cublas.Create, &missing);
  library.Find("cublasDestroy_v2", &cublas.Destroy, &missing);
  library.Find("cublasSetStream_v2", &cublas.SetStream, &missing);
  library.Find("cublasSetPointerMode_v2", &cublas.SetPointerMode, &missing);
  library.Find("cublasGetStatusString", &cublas.GetStatusString, &missing);
  library.Find("cublasDotEx_64", &cublas.DotEx, &missing);
  library.Find("cublasScalEx_64", &cublas.ScalEx, &missing);
  library.Find("cublasAxpyEx_64", &cublas.AxpyEx, &missing);
  library.Find("cublasGemmEx_64", &cublas.GemmEx, &missing);
  return missing;
}

std::string Dotted(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

Status CublasLibrary::Check(CublasAnswer answer, const std::string& what) const {
  if (answer == kCublasSuccess) return Status::Ok();
  return Status::Unavailable("cuBLAS could not " + what + ": " + GetStatusString(answer));
}

CublasLibrary OpenCublas(const GpuLibraryPaths& paths) {
  CublasLibrary cublas;
  const OpenedLibrary opened = OpenGpuLibrary({"libcublas.so.13", "libcublas.so.12"}, paths.cublas,
                                              paths.python_prefix, "libcublas.so.1[23]");
  if (opened.handle == nullptr) {
    cublas.found.text = opened.why + kInstall;
    return cublas;
  }
  std::string missing;
  int major = 0, minor = 0, patch = 0;
  opened.Find("cublasGetProperty", &cublas.GetProperty, &missing);
  if (cublas.GetProperty == nullptr || cublas.GetProperty(0, &major) != kCublasSuccess ||
      cublas.GetProperty(1, &minor) != kCublasSuccess ||
      cublas.GetProperty(2, &patch) != kCublasSuccess) {
    cublas.found.text =
        std::string("what was found is not cuBLAS: it does not say its version") + kInstall;
    return cublas;
  }
  missing += FindAll(opened, cublas);
  const int version = major * 10000 + minor * 100 + patch;
  const std::string what =
      "cuBLAS " + Dotted(version) + " in " + FileOf(reinterpret_cast<void*>(cublas.GetProperty));
  if (version < kLeastCublas || !missing.empty()) {
    cublas.found.text = what + " is too old: " + Dotted(kLeastCublas) + " is the least" +
                        (missing.empty() ? "" : ", and it has no " + missing) + kInstall;
    return cublas;
  }
  cublas.found = {version, what};
  return cublas;
}

}  // namespace horon

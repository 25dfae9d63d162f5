// Status and Result: how every function in the library that can fail says so.
//
// A Status is a code and one sentence. Codes exist only where a caller acts differently; the
// sentence is written once, where the failure is decided, and is meant for the user who reads it.
// The library throws nothing itself; c_api.cc and the background thread's entry stop whatever the
// standard library throws. Any thread may use these types; a Status is a value.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace horon {

enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,  // the call is wrong: this tensor fails, the runtime goes on
  kUnsupported = 2,      // this build or device cannot do it
  kUnavailable = 3,      // a peer or a wire is gone: this runtime is finished
  kAborted = 4,          // shut down while the work was pending, or used after shutdown
  kInternal = 5,         // a fault in Horon itself
  kLate = 6,             // some rank was: this tensor fails, the runtime goes on
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string message)
      : code_(code), message_(std::make_shared<const std::string>(std::move(message))) {}

  static Status Ok() { return {}; }
  static Status InvalidArgument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
  static Status Unsupported(std::string m) { return {Code::kUnsupported, std::move(m)}; }
  static Status Unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
  static Status Aborted(std::string m) { return {Code::kAborted, std::move(m)}; }
  static Status Internal(std::string m) { return {Code::kInternal, std::move(m)}; }
  static Status Late(std::string m) { return {Code::kLate, std::move(m)}; }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  // Empty when ok. Lives as long as any copy of this Status.
  const std::string& message() const {
    static const std::string kEmpty;
    return message_ ? *message_ : kEmpty;
  }

 private:
  Code code_ = Code::kOk;
  std::shared_ptr<const std::string> message_;
};

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit on purpose
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace horon

#define HORON_CONCAT_(a, b) a##b
#define HORON_CONCAT(a, b) HORON_CONCAT_(a, b)

// Returns from the enclosing function when `expr` (a Status) is not ok.
#define HORON_TRY(expr)                                  \
  do {                                                   \
    ::horon::Status horon_try_status = (expr);           \
    if (!horon_try_status.ok()) return horon_try_status; \
  } while (false)

// `HORON_ASSIGN(auto x, F())`: declares x from a Result or returns its Status.
#define HORON_ASSIGN(decl, expr) HORON_ASSIGN_(HORON_CONCAT(horon_result_, __LINE__), decl, expr)
#define HORON_ASSIGN_(tmp, decl, expr) \
  auto tmp = (expr);                   \
  if (!tmp.ok()) return tmp.status();  \
  decl = std::move(tmp).value()

#include "runtime/c_exchange.h"

#include "runtime/c_work.h"

namespace horon {
namespace {

// With what is lent to the runtime, which goes on with it where the caller breaks off.
struct Exchanging : horon_work {
  explicit Exchanging(std::vector<int64_t> numbers) : horon_work(1), mine(std::move(numbers)) {}
  const std::vector<int64_t> mine;
};

}  // namespace

Result<std::vector<std::vector<int64_t>>> Exchange(Runtime& runtime, const std::string& name,
                                                   const std::vector<int64_t>& mine,
                                                   int32_t process_set, const char* op) {
  const auto work = std::make_shared<Exchanging>(mine);
  Request request;
  request.op = op;
  request.name = name;
  request.process_set = process_set;
  request.dtype = DataType::kInt64;
  request.shape = {static_cast<int64_t>(mine.size())};
  HORON_ASSIGN(SharedRegistration what, runtime.registry().Of(std::move(request)));
  Submission one{std::move(what), reinterpret_cast<const std::byte*>(work->mine.data()), nullptr};
  HORON_TRY(runtime.Submit({&one, 1}, work, false));
  HORON_TRY(runtime.WaitLooking(*work));
  const Output& output = work->outputs()[0];
  const auto* at = reinterpret_cast<const int64_t*>(output.data);
  std::vector<std::vector<int64_t>> all;
  for (const int64_t count : output.received_splits) {
    all.emplace_back(at, at + count);
    at += count;
  }
  return all;
}

}  // namespace horon

#include "runtime/core/registry.h"

#include <utility>

namespace horon {

Registration::Registration(Request of, Op* its_op)
    : request(std::move(of)),
      key(KeyOf(request.process_set, request.name)),
      tensor_id(TensorId(request.process_set, request.name)),
      count(CountOf(request.shape)),
      bytes(count * SizeOf(request.dtype)),
      op(its_op) {}

SharedRegistration Registry::Find(int32_t process_set, std::string_view name) {
  MutexLock lock(mutex_);
  return Look({process_set, name});
}

Result<SharedRegistration> Registry::Of(Request request) {
  Op* op = nullptr;
  if (!IsBuiltIn(request.op)) {
    request.op = ops_->Complete(request.op);
    HORON_ASSIGN(op, ops_->Find(request.op));
    HORON_TRY(op->CheckAlone(request));
  }
  MutexLock lock(mutex_);
  HORON_TRY(closed_);
  const Name name{request.process_set, request.name};
  const SharedRegistration known = Look(name);
  if (known && known->request == request) return known;
  if (known && !known->Replace()) return StillPending(request);
  young_.erase(name);  // its key is the old one's text
  auto made = std::make_shared<Registration>(std::move(request), op);
  if (known) made->Follow(*known);
  Insert(made);
  return made;
}

Result<SharedRegistration> Registry::Unlisted(Request request) {
  HORON_ASSIGN(Op* const op, ops_->Find(request.op));
  return std::make_shared<Registration>(std::move(request), op);
}

void Registry::ForgetSet(int32_t process_set) {
  MutexLock lock(mutex_);
  for (Names* names : {&young_, &old_}) {
    std::erase_if(*names, [&](const auto& item) {
      return item.first.process_set == process_set && item.second->Replace();
    });
  }
}

void Registry::Close(Status status) {
  MutexLock lock(mutex_);
  closed_ = std::move(status);
  for (Names* names : {&young_, &old_}) {
    for (auto& [name, what] : *names) what->Replace();
    names->clear();
  }
}

// What is used is young.
SharedRegistration Registry::Look(const Name& name) {
  const auto young = young_.find(name);
  if (young != young_.end()) return young->second;
  const auto old = old_.find(name);
  if (old == old_.end()) return nullptr;
  SharedRegistration what = std::move(old->second);
  old_.erase(old);
  Insert(what);
  return what;
}

void Registry::Insert(SharedRegistration what) {
  if (young_.size() >= most_) {
    // A pending name must not be taken twice; whoever else is forgotten here may come back as new.
    for (auto& [name, forgotten] : old_) {
      if (!forgotten->Replace()) young_.emplace(name, forgotten);
    }
    old_ = std::exchange(young_, {});
  }
  const Name name{what->request.process_set, what->request.name};
  young_.insert_or_assign(name, std::move(what));
}

Status StillPending(const Request& request) {
  return Status::InvalidArgument(
      "a tensor named '" + request.name +
      "' is still pending on this rank: wait for it, or give this one another name");
}

}  // namespace horon

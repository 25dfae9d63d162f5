// ResponseCache: a rank's memory of what was agreed, by cache id. A request equal to the remembered
// one travels as its id. Ids come from the coordinator in the same order to every rank, so the
// caches of all ranks say the same. Pure; holder of the baton only.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/op/request.h"

namespace horon {

class ResponseCache {
 public:
  struct Line {
    std::string key;
    Request request;
    Agreement agreed;
  };

  // The id under which exactly this request is remembered, or 0.
  uint64_t Find(const std::string& key, const Request& request) const {
    const auto it = id_of_.find(key);
    return it != id_of_.end() && lines_.at(it->second).request == request ? it->second : 0;
  }
  const Line* Get(uint64_t id) const {
    const auto it = lines_.find(id);
    return it == lines_.end() ? nullptr : &it->second;
  }
  void Remember(uint64_t id, const std::string& key, const Request& request,
                const Agreement& agreed) {
    const auto old = id_of_.find(key);
    if (old != id_of_.end()) lines_.erase(old->second);
    id_of_[key] = id;
    lines_[id] = {key, request, agreed};
  }
  void Forget(uint64_t id) {
    const auto it = lines_.find(id);
    if (it == lines_.end()) return;
    const auto key = id_of_.find(it->second.key);
    if (key != id_of_.end() && key->second == id) id_of_.erase(key);
    lines_.erase(it);
  }
  void ForgetSet(int32_t process_set) {
    std::vector<uint64_t> ids;
    for (const auto& [id, line] : lines_) {
      if (line.request.process_set == process_set) ids.push_back(id);
    }
    for (uint64_t id : ids) Forget(id);
  }
  size_t size() const { return lines_.size(); }

 private:
  std::unordered_map<std::string, uint64_t> id_of_;
  std::unordered_map<uint64_t, Line> lines_;
};

}  // namespace horon

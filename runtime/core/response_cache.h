// ResponseCache: a rank's memory of what was agreed, by cache id. A request equal to the remembered
// one travels as its id. Ids come from the coordinator in the same order to every rank, so the
// caches of all ranks say the same. Pure; holder of the baton only.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/core/registry.h"

namespace horon {

class ResponseCache {
 public:
  struct Line {
    SharedRegistration what;
    Agreement agreed;
  };

  // The id under which exactly this request is remembered, or 0.
  uint64_t Find(const SharedRegistration& what) {
    if (what->cache_id != 0) return what->cache_id;
    const auto it = id_of_.find(what->key);
    if (it == id_of_.end()) return 0;
    Line& line = lines_.at(it->second);
    if (line.what->request != what->request) return 0;
    line.what->cache_id = 0;  // the name was forgotten meanwhile, and registered again
    line.what = what;
    return what->cache_id = it->second;
  }
  Line* Get(uint64_t id) {
    const auto it = lines_.find(id);
    return it == lines_.end() ? nullptr : &it->second;
  }
  void Remember(uint64_t id, const SharedRegistration& what, const Agreement& agreed) {
    const auto old = id_of_.find(what->key);
    if (old != id_of_.end()) Forget(old->second);
    id_of_[what->key] = id;
    lines_[id] = {what, agreed};
    what->cache_id = id;
  }
  void Forget(uint64_t id) {
    const auto it = lines_.find(id);
    if (it == lines_.end()) return;
    it->second.what->cache_id = 0;
    id_of_.erase(it->second.what->key);
    lines_.erase(it);
  }
  void ForgetSet(int32_t process_set) {
    std::vector<uint64_t> ids;
    for (const auto& [id, line] : lines_) {
      if (line.what->request.process_set == process_set) ids.push_back(id);
    }
    for (uint64_t id : ids) Forget(id);
  }
  size_t size() const { return lines_.size(); }

 private:
  std::unordered_map<std::string, uint64_t> id_of_;  // by key
  std::unordered_map<uint64_t, Line> lines_;
};

}  // namespace horon

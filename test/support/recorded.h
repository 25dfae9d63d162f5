// What a reader of a recorder's descriptor sees, as the launcher does. On the test's thread.
#pragma once

#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/recorder.h"
#include "test/support/catch.h"

namespace horon::test {

struct Read {
  EventKind kind;
  std::string text;
  int64_t value;
};

// By number.
inline std::map<uint64_t, Read> ReadAll(const Recorder& recorder) {
  std::vector<char> bytes(static_cast<size_t>(recorder.bytes()));
  REQUIRE(pread(recorder.fd(), bytes.data(), bytes.size(), 0) == recorder.bytes());
  RecorderHeader* header = reinterpret_cast<RecorderHeader*>(bytes.data());
  REQUIRE(std::memcmp(header->magic, "HORONREC", 8) == 0);
  REQUIRE(header->pid == getpid());
  auto* events = reinterpret_cast<RecordedEvent*>(bytes.data() + 4096);
  std::map<uint64_t, Read> read;
  for (uint64_t i = 0; i < header->capacity; ++i) {
    const uint64_t number = events[i].number.load();
    if (number == 0) continue;
    REQUIRE((number - 1) % header->capacity == i);
    const uint64_t what = events[i].what.load();
    char text[96];
    std::memcpy(text, static_cast<const void*>(events[i].text), sizeof(text));
    read[number] = {static_cast<EventKind>(what & 0xffff),
                    std::string(text, static_cast<size_t>((what >> 16) & 0xffff)),
                    events[i].value.load()};
  }
  return read;
}

}  // namespace horon::test

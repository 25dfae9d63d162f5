#include "runtime/core/tuning_file.h"

#include <charconv>
#include <sstream>

#include "runtime/base/config.h"

namespace horon {
namespace {

struct NamedField {
  const char* name;
  int64_t most;
  int64_t value;
};

bool Read(std::string_view text, NamedField& field) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, field.value);
  return error == std::errc() && at == end && field.value >= 0 && field.value <= field.most;
}

}  // namespace

std::string TuningText(const Tuning& tuning) {
  std::ostringstream text;
  text << "fusion_bytes=" << tuning.fusion_bytes << "\nchunk_bytes=" << tuning.chunk_bytes
       << "\nslice_bytes=" << tuning.slice_bytes << "\nhierarchical=" << tuning.hierarchical
       << "\n";
  return text.str();
}

Result<Tuning> ParseTuning(const std::string& text) {
  NamedField fields[] = {{"fusion_bytes", INT64_MAX, -1},
                         {"chunk_bytes", 1 << 30, -1},
                         {"slice_bytes", 1 << 30, -1},
                         {"hierarchical", 1, -1}};
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    NamedField* found = nullptr;
    for (NamedField& field : fields) {
      if (line.substr(0, equals) == field.name) found = &field;
    }
    if (equals == std::string::npos || found == nullptr || found->value >= 0 ||
        !Read(std::string_view(line).substr(equals + 1), *found))
      return Status::InvalidArgument("line " + std::to_string(number) + ", '" + line +
                                     "', is no setting");
  }
  for (const NamedField& field : fields) {
    if (field.value < 0)
      return Status::InvalidArgument(std::string("it does not say ") + field.name);
  }
  if (fields[2].value > 0 && fields[2].value < kLeastSliceBytes)
    return Status::InvalidArgument("slice_bytes is 0 or at least " +
                                   std::to_string(kLeastSliceBytes));
  return Tuning{fields[0].value, fields[1].value, fields[2].value, fields[3].value != 0};
}

}  // namespace horon

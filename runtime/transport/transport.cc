#include "runtime/transport/transport.h"

namespace horon {

void Transfer::Cancel() {
  if (transport != nullptr && !done) transport->Cancel(*this);
  transport = nullptr;
}

}  // namespace horon

// The descriptors of Horon that a forked child must not keep: as long as it lived, the others would
// not see the end of file that says that this process has died, and their memory would stay.
// (Close-on-exec does not help where nothing is executed.)
//
// Any thread; CloseInChild in the child of a fork only.
#pragma once

namespace horon {

// Gives `fd`, which may be -1: then there is nothing to own.
int Own(int fd);
// Closes what Own got, unless a child has closed it already. -1 is fine.
void CloseOwn(int fd);
// All of them. Async-signal-safe.
void CloseInChild();

}  // namespace horon

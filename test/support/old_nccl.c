/* A libnccl that is too old and lacks most of what Horon calls, to test how that is said. */
int ncclGetVersion(int* version) {
  *version = 21003;
  return 0;
}

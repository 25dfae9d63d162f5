/* A libnccl that is new enough by its number and lacks most of what Horon calls. */
int ncclGetVersion(int* version) {
  *version = 22304;
  return 0;
}
int ncclGetUniqueId(void* id) { return id == 0; }

/* A libcublas that is too old and lacks most of what Horon calls, to test how that is said. */
int cublasGetProperty(int kind, int* value) {
  *value = kind == 0 ? 11 : 4;
  return 0;
}

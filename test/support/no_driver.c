/* What is built of this is a libcuda.so.1 with nothing in it, for the fake CUDA plugin. */
int horon_no_driver = 1;

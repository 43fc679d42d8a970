/* A library that is no CUDA module, to prove that the loader refuses it. */
int Nothing(void) { return 0; }

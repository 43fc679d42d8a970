/* A library that is not a CUDA module, to prove that the loader refuses it. */
int Nothing(void) { return 0; }

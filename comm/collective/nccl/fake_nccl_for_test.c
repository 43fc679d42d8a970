/* The one function of NCCL that the probe calls, so that its test needs no NCCL. */
int ncclGetVersion(int* version) {
  *version = 22703;
  return 0;
}

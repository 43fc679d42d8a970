/* A library that ends the process that opens it, as a second copy of protobuf does, and imports what a module exports. */
#include <stdlib.h>

__attribute__((constructor)) static void End(void) { abort(); }

__attribute__((weak)) void SynclineCudaDescribe(void*);
void Ask(void) {
  if (SynclineCudaDescribe) SynclineCudaDescribe(0);
}

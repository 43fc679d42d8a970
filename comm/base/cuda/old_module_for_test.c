/* A module of interface 0, to prove that the loader refuses it. */
struct Info {
  unsigned abi;
};
void SynclineCudaDescribe(struct Info* info) { info->abi = 0; }

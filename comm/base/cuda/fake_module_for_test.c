/* A module of today's interface whose runtime is newer than the driver of its machine. */
struct Info {
  unsigned abi;
  unsigned struct_bytes;
  int runtime_version;
  int driver_version;
  int device_count;
  const char* architectures;
  const char* message;
};
void SynclineCudaDescribe(struct Info* info) {
  info->abi = 3;
  if (info->struct_bytes != sizeof(struct Info)) return;
  info->runtime_version = 13000;
  info->driver_version = 12040;
  info->device_count = 0;
  info->architectures = "sm_90";
  info->message = "CUDA driver version is insufficient for CUDA runtime version";
}

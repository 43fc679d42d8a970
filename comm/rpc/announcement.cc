#include "comm/rpc/announcement.h"

#include <openssl/evp.h>

#include <utility>

#include "comm/base/check.h"
#include "comm/rpc/attach_stream.h"

namespace syncline {

std::string Sha256(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  SYNCLINE_CHECK(
      EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  return {reinterpret_cast<const char*>(digest), size};
}

Announcement Announce(const v1::JobSpec& job, const WorkerIdentity& worker) {
  Announcement announcement;
  std::string spec = job.SerializeAsString();
  v1::WorkerHello& hello = *announcement.hello.mutable_worker_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_build_version(SYNCLINE_VERSION);
  hello.set_rank(worker.rank);
  hello.set_run_id(worker.run_id);
  hello.set_name(worker.name);
  hello.set_failure_timeout_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(worker.failure_timeout)));
  hello.set_rejoins(worker.rejoins);
  hello.set_job(job.name());
  hello.set_job_digest(Sha256(spec));
  hello.set_job_bytes(spec.size());
  announcement.declaration.mutable_job_declaration()->set_spec(std::move(spec));
  return announcement;
}

}  // namespace syncline

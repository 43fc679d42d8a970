// A worker of the storm. Its contributions are entries in a ledger, and the weights are
// the ledger.
//
// Each tensor has a slot for each rank and step. At step s rank r pushes 1 at slot (r, s)
// and 0 elsewhere, the optimizer is SGD with a learning rate of 1, and all give the same
// number of samples. So in the end slot (r, s) is -1/n if r was one of n ranks that made
// step s, -2/n if it was counted twice, and 0 if it was not counted. ledger.py reads it.
//
//   joined step=S
//   step K            after each step
//   done step=K       the weights are in the file --out, tensor after tensor
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "comm/base/exit_codes.h"
#include "comm/base/log.h"
#include "comm/base/status.h"
#include "worker/client/session.h"

namespace syncline {
namespace {

struct LedgerFlags {
  uint32_t ranks = 4;
  uint32_t slots = 4096;  // for each rank; more than the steps of any job
  uint32_t tensors = 6;
  int step_ms = 40;
  std::string end;  // file with the step before which the job ends; no file: not yet
  std::string out;
};

struct LedgerTensor {
  std::vector<float> weights;
  TensorId id = 0;
};

uint64_t EndOf(const LedgerFlags& flags) {
  uint64_t end = 0;
  return std::ifstream(flags.end) >> end ? end : std::numeric_limits<uint64_t>::max();
}

absl::Status KeepLedger(const LedgerFlags& flags, Session& session,
                        std::vector<LedgerTensor>& tensors) {
  std::vector<float> entry(size_t{flags.ranks} * flags.slots);
  for (uint64_t step = session.step(); step < EndOf(flags); step = session.step()) {
    if (step >= flags.slots || session.rank() >= flags.ranks) {
      return absl::OutOfRangeError(absl::StrCat("the ledger has no slot for rank ",
                                                session.rank(), " at step ", step));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(flags.step_ms));
    const size_t slot = size_t{session.rank()} * flags.slots + step;
    entry[slot] = 1;
    for (const LedgerTensor& tensor : tensors) {
      SYNCLINE_RETURN_IF_ERROR(session.PushPull(tensor.id, entry, 1));
    }
    SYNCLINE_RETURN_IF_ERROR(session.WaitAll());
    entry[slot] = 0;
    std::printf("step %llu\n", static_cast<unsigned long long>(step));
    std::fflush(stdout);
  }
  return session.Barrier();
}

absl::Status WriteLedger(const LedgerFlags& flags,
                         const std::vector<LedgerTensor>& tensors) {
  std::ofstream file(flags.out, std::ios::binary);
  for (const LedgerTensor& tensor : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.weights.data()),
               static_cast<std::streamsize>(tensor.weights.size() * sizeof(float)));
  }
  file.close();
  return file ? absl::OkStatus()
              : absl::InternalError(absl::StrCat("cannot write ", flags.out));
}

absl::Status RunLedger(const LedgerFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(SessionOptions options, SessionOptions::FromEnv());
  options.training.optimizer = {.name = "sgd", .values = {{"lr", 1.0}}};
  options.settings.push_codec = options.settings.publish_codec = "fp32";
  options.log = Logger::Create({});
  SYNCLINE_ASSIGN_OR_RETURN(const auto session, Session::Create(options));
  std::vector<LedgerTensor> tensors(flags.tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t elements = uint64_t{flags.ranks} * flags.slots;
    tensors[i].weights.assign(elements, 0.0f);
    SYNCLINE_ASSIGN_OR_RETURN(
        tensors[i].id,
        session->Declare({.name = absl::StrCat("ledger", i), .shape = {elements}},
                         tensors[i].weights));
  }
  SYNCLINE_RETURN_IF_ERROR(session->Start());
  std::printf("joined step=%llu\n", static_cast<unsigned long long>(session->step()));
  std::fflush(stdout);
  SYNCLINE_RETURN_IF_ERROR(KeepLedger(flags, *session, tensors));
  SYNCLINE_RETURN_IF_ERROR(WriteLedger(flags, tensors));
  std::printf("done step=%llu\n", static_cast<unsigned long long>(session->step()));
  std::fflush(stdout);
  return session->Leave();
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  CLI::App app("A worker of the storm");
  syncline::LedgerFlags flags;
  app.add_option("--ranks", flags.ranks);
  app.add_option("--slots", flags.slots);
  app.add_option("--tensors", flags.tensors);
  app.add_option("--step-ms", flags.step_ms);
  app.add_option("--end", flags.end)->required();
  app.add_option("--out", flags.out)->required();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = syncline::RunLedger(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
  // The worker was dropped. The next process of its rank joins at the next step.
  return absl::IsAborted(status) ? syncline::kExitRetryable
                                 : syncline::ExitCodeOf(status);
}

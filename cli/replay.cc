#include "cli/replay.h"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/checkpoint_store.h"
#include "cli/weights_file.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/job_seed.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/codec/codec.h"
#include "server/checkpoint/blob_store.h"
#include "server/checkpoint/directory_store.h"
#include "server/checkpoint/reader.h"
#include "server/coordinator/job_spec.h"
#include "server/journal/replay.h"
#include "server/service/checkpoint_layout.h"
#include "server/service/job_convert.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

struct ReplayFlags {
  std::vector<std::string> journals;
  std::string checkpoint_dir;
  std::string job;
  std::string run;
  std::string to;
  std::string out;
  std::string checkpoint_out;
  bool verify = false;
};

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// A new directory that the destructor removes.
class Scratch {
 public:
  // Creates it beside `file`, where there is room for data of that size.
  static absl::StatusOr<std::unique_ptr<Scratch>> Beside(const std::string& file) {
    std::string path = absl::StrCat(file, ".replay-XXXXXX");
    if (mkdtemp(path.data()) != nullptr) {
      return std::unique_ptr<Scratch>(new Scratch(std::move(path)));
    }
    return Usage(absl::StrCat(
        "--out ", file, ": cannot make a directory beside it: ", std::strerror(errno)));
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

// Stores nothing. Used to check whether a journal can be replayed.
class NoStore final : public BlobStore {
 public:
  absl::StatusOr<std::vector<Blob>> List(const std::string&) override {
    return std::vector<Blob>();
  }
  absl::Status Read(const std::string& name, uint64_t, MutableByteView) override {
    return absl::NotFoundError(absl::StrCat(name, " was not kept"));
  }
  absl::StatusOr<std::unique_ptr<BlobWriter>> Create(const std::string&,
                                                     size_t) override {
    return std::make_unique<Writer>();
  }
  absl::Status Claim(const std::string&) override { return absl::OkStatus(); }
  absl::Status Delete(const std::string&) override { return absl::OkStatus(); }
  std::string Describe() const override { return "no store"; }

 private:
  class Writer final : public BlobWriter {
   public:
    absl::Status Append(ByteView) override { return absl::OkStatus(); }
    absl::Status Finish(ByteView) override { return absl::OkStatus(); }
  };
};

absl::StatusOr<ReplayOptions> OptionsFor(JournalRun run, const CodecRegistry& codecs) {
  SYNCLINE_ASSIGN_OR_RETURN(const JobSpec spec,
                            WireDeclarations().parse(run.head.specification));
  SYNCLINE_RETURN_IF_ERROR(ValidateJob(spec));
  ReplayOptions options = {.run = std::move(run)};
  options.shard = {.seed = JobSeed(spec.name)};
  SYNCLINE_ASSIGN_OR_RETURN(options.shard.transfers, spec.Transfers());
  SYNCLINE_ASSIGN_OR_RETURN(options.shard.seed_codec, codecs.Find(CodecId::kFp32));
  options.shard.training = spec.training;
  options.shard.tensors = spec.Trained();
  options.blocks = spec.Blocks();
  SYNCLINE_ASSIGN_OR_RETURN(options.layout, LayoutOf(spec));
  options.about = {.job = spec.name,
                   .push_codec = spec.settings.push_codec,
                   .publish_codec = spec.settings.publish_codec,
                   .declared = spec.training,
                   .tensors = options.layout->tensors};
  return options;
}

absl::Status CheckHasSteps(const ReplayOptions& options) {
  if (!options.shard.training.sync().is_async()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job '", Printable(options.about.job),
                   "' has mode asp, where blocks have no step in common: --verify works, "
                   "but a checkpoint or a file of weights cannot be made"));
}

absl::Status CheckFlags(const ReplayFlags& flags) {
  if (flags.journals.empty() || flags.job.empty()) {
    return Usage("replay needs --journal DIR for every server, and --job NAME");
  }
  if (flags.out.empty() && flags.checkpoint_out.empty() && !flags.verify) {
    return Usage(
        "choose what to produce: --out FILE for the weights, --checkpoint-out DIR for a "
        "checkpoint to go on from, or --verify");
  }
  return flags.out.empty() ? absl::OkStatus() : CheckWeightsFile(flags.out);
}

void Tell(const JournalRun& run) {
  std::cout << "run " << Printable(run.Describe()) << "\n";
  for (const std::string& other : run.others) {
    std::cout << "note: not replayed (--run selects it): " << Printable(other) << "\n";
  }
}

void Tell(const ReplayFlags& flags, const ReplaySummary& done) {
  for (const std::string& torn : done.torn) std::cout << "note: " << torn << "\n";
  std::cout << "job " << Printable(flags.job) << ": " << done.records
            << " records were replayed from " << done.began << " to step "
            << done.name.step << " (the journal has steps " << done.first << " to "
            << done.last << ")\n";
  if (flags.verify) {
    std::cout << "verified: " << done.compared
              << " digests of the servers match this replay\n";
  }
  if (!flags.checkpoint_out.empty()) {
    std::cout << "checkpoint " << done.name.ToString() << " is in "
              << flags.checkpoint_out
              << "; the job goes on from it with: syncline run --checkpoint-dir "
              << flags.checkpoint_out << " --resume " << done.name.ToString() << " --job "
              << Printable(flags.job) << " ...\n";
  }
  if (!flags.out.empty()) std::cout << flags.out << ": the weights\n";
}

absl::Status ExportTo(BlobStore& store, const ReplayFlags& flags,
                      const CheckpointName& name) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto reader,
                            CheckpointReader::Open(store, flags.job, name));
  return WriteWeightsFile(*reader, flags.out);
}

absl::StatusOr<int> Replay(const ReplayFlags& flags) {
  SYNCLINE_RETURN_IF_ERROR(CheckFlags(flags));
  const CodecRegistry codecs = CodecRegistry::Builtin();
  SYNCLINE_ASSIGN_OR_RETURN(JournalRun run,
                            FindRun(flags.journals, flags.job, flags.run));
  Tell(run);
  SYNCLINE_ASSIGN_OR_RETURN(ReplayOptions options, OptionsFor(std::move(run), codecs));
  if (!flags.out.empty() || !flags.checkpoint_out.empty()) {
    SYNCLINE_RETURN_IF_ERROR(CheckHasSteps(options));
  }
  if (uint64_t to = 0; absl::SimpleAtoi(flags.to, &to)) {
    options.to = to;
  } else if (!flags.to.empty()) {
    return Usage(absl::StrCat("--to ", flags.to, " is not a step"));
  }
  options.digests = flags.verify ? Digests::kCompared : Digests::kIgnored;
  std::unique_ptr<BlobStore> checkpoints;
  if (!flags.checkpoint_dir.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(checkpoints,
                              OpenExistingCheckpointStore(flags.checkpoint_dir));
    options.checkpoints = checkpoints.get();
  }
  std::unique_ptr<Scratch> scratch;
  std::unique_ptr<BlobStore> store = std::make_unique<NoStore>();
  if (!flags.checkpoint_out.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(store, OpenCheckpointStore(flags.checkpoint_out));
  } else if (!flags.out.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(scratch, Scratch::Beside(flags.out));
    SYNCLINE_ASSIGN_OR_RETURN(store, OpenDirectoryStore(scratch->path()));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const ReplaySummary done, ReplayInto(options, *store));
  if (!flags.checkpoint_out.empty()) {
    SYNCLINE_RETURN_IF_ERROR(
        Settle(options.run, absl::StrCat("checkpoint ", done.name.ToString(),
                                         " was made in ", flags.checkpoint_out)));
  }
  if (!flags.out.empty()) SYNCLINE_RETURN_IF_ERROR(ExportTo(*store, flags, done.name));
  Tell(flags, done);
  return kExitDone;
}

}  // namespace

absl::StatusOr<bool> LeadsToAStep(const JournalRun& run) {
  SYNCLINE_ASSIGN_OR_RETURN(const JobSpec spec,
                            WireDeclarations().parse(run.head.specification));
  return !spec.training.sync().is_async();
}

absl::StatusOr<ReplaySummary> ReplayToCheckpoint(JournalRun run,
                                                 const std::string& checkpoints) {
  const CodecRegistry codecs = CodecRegistry::Builtin();
  SYNCLINE_ASSIGN_OR_RETURN(ReplayOptions options, OptionsFor(std::move(run), codecs));
  SYNCLINE_RETURN_IF_ERROR(CheckHasSteps(options));
  SYNCLINE_ASSIGN_OR_RETURN(const auto store, OpenCheckpointStore(checkpoints));
  options.checkpoints = store.get();
  options.digests = Digests::kCompared;
  return ReplayInto(options, *store);
}

void AddReplay(CLI::App& app, Command* selected) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* replay = app.add_subcommand(
      "replay",
      "Replay a run of a job from its journal, up to any of its steps; needs at least "
      "one of --out, --checkpoint-out and --verify");
  replay->add_option("--journal", flags->journals,
                     "A server's --journal-dir; once for each that is not shared. "
                     "Required");
  replay->add_option("--job", flags->job, "Name of the job. Required");
  replay->add_option("--run", flags->run,
                     "Which run of the job (default: the one that began last)");
  replay->add_option("--checkpoint-dir", flags->checkpoint_dir,
                     "Where the job's checkpoints are, if the journal begins with one");
  replay->add_option("--to", flags->to, "The step to stop at (default: the last one)");
  replay->add_option("--out", flags->out, "File for the weights, as safetensors");
  replay->add_option(
      "--checkpoint-out", flags->checkpoint_out,
      "Directory, or s3://BUCKET/PREFIX, for a checkpoint at that step, to "
      "resume from");
  replay->add_flag(
      "--verify", flags->verify,
      "Compare the result of each step of each block with what the servers had");
  replay->callback([=] {
    *selected = [flags]() -> absl::StatusOr<int> {
      absl::StatusOr<int> done = Replay(*flags);
      if (done.ok() || FailureOf(done.status()) != Failure::kNone) return done;
      return WithFailure(done.status(), Failure::kStateUnusable);
    };
  });
}

}  // namespace syncline

#include "cli/checkpoint.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "cli/checkpoint_store.h"
#include "cli/checkpoint_view.h"
#include "cli/flags.h"
#include "cli/human_bytes.h"
#include "cli/local_runs.h"
#include "cli/weights_file.h"
#include "comm/base/env.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/base/unknown_job.h"
#include "comm/rpc/coordinator_call.h"
#include "comm/rpc/status_json.h"
#include "nlohmann/json.hpp"
#include "proto/coordinator.grpc.pb.h"
#include "server/checkpoint/catalog.h"
#include "server/checkpoint/reader.h"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr absl::Duration kAskEvery = absl::Milliseconds(200);

struct CheckpointFlags {
  std::string job;
  std::string name = "latest";
  std::string directory;
  std::string out;
  std::string coordinator;
  std::string wait = "10m";
  OutputFormat format = OutputFormat::kTable;
  TlsOptions tls;
};

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// Marks damaged, missing or too new data as Failure::kStateUnusable.
absl::Status Unusable(const absl::Status& status) {
  if (status.ok() || FailureOf(status) != Failure::kNone) return status;
  return WithFailure(status, Failure::kStateUnusable);
}

absl::StatusOr<std::unique_ptr<BlobStore>> Open(const CheckpointFlags& flags) {
  if (!flags.directory.empty()) return OpenExistingCheckpointStore(flags.directory);
  return Usage(
      "say where the checkpoints are: --checkpoint-dir, or SYNCLINE_CHECKPOINT_DIR");
}

// Fails if the store has checkpoints, but nothing of this job. The error lists the jobs
// by their folders, as `list` does. A job that has claimed its run but saved nothing is
// accepted.
absl::Status CheckJob(BlobStore& store, const std::string& job) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto of_job, store.List(FolderOf(job)));
  SYNCLINE_ASSIGN_OR_RETURN(const auto all, ListCheckpoints(store, ""));
  if (!of_job.empty() || all.empty()) return absl::OkStatus();
  std::set<std::string_view> folders;
  for (const CheckpointInfo& one : all) folders.insert(one.folder);
  const std::vector<std::string_view> names(folders.begin(), folders.end());
  const absl::Status unknown = UnknownJob(job, names, JobSet::kKnown);
  return absl::NotFoundError(
      absl::StrCat(store.Describe(), ": ", std::string(unknown.message())));
}

// Resolves "latest", or parses a checkpoint's name.
absl::StatusOr<CheckpointName> Find(BlobStore& store, const CheckpointFlags& flags) {
  if (flags.job.empty()) return Usage("this needs the name of a job");
  SYNCLINE_RETURN_IF_ERROR(CheckJob(store, flags.job));
  if (const auto name = CheckpointName::Parse(flags.name)) return *name;
  if (flags.name != "latest") {
    return Usage(absl::StrCat(
        "'", Printable(flags.name),
        "' is not the name of a checkpoint; give one that list shows, such as ",
        "run1-step500, or latest"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const Beginning latest,
                            FindBeginning(store, flags.job, flags.name));
  return latest.from.name;
}

absl::StatusOr<int> List(const CheckpointFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto store, Open(flags));
  if (!flags.job.empty()) SYNCLINE_RETURN_IF_ERROR(CheckJob(*store, flags.job));
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto all,
      ListCheckpoints(*store, flags.job.empty() ? "" : FolderOf(flags.job)));
  std::cout << (flags.format == OutputFormat::kJson
                    ? CheckpointJson(all)
                    : CheckpointTable(all, absl::LocalTimeZone()));
  return kExitDone;
}

absl::StatusOr<int> Show(const CheckpointFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto store, Open(flags));
  SYNCLINE_ASSIGN_OR_RETURN(const CheckpointName name, Find(*store, flags));
  SYNCLINE_ASSIGN_OR_RETURN(const Manifest manifest,
                            ReadManifest(*store, flags.job, name));
  if (flags.format == OutputFormat::kJson) {
    std::cout << ManifestJson(manifest);
    return kExitDone;
  }
  SYNCLINE_ASSIGN_OR_RETURN(const auto all, ListCheckpoints(*store, FolderOf(flags.job)));
  const auto about = std::ranges::find(all, name, &CheckpointInfo::name);
  std::cout << ManifestTable(manifest, about == all.end() ? CheckpointInfo() : *about,
                             absl::LocalTimeZone());
  return kExitDone;
}

absl::StatusOr<int> Verify(const CheckpointFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto store, Open(flags));
  SYNCLINE_ASSIGN_OR_RETURN(const CheckpointName name, Find(*store, flags));
  SYNCLINE_ASSIGN_OR_RETURN(const auto reader,
                            CheckpointReader::Open(*store, flags.job, name));
  SYNCLINE_RETURN_IF_ERROR(reader->Verify());
  std::cout << "checkpoint " << name.ToString() << " of job " << Printable(flags.job)
            << " is intact: " << reader->manifest().bytes()
            << " bytes have the right checksums\n";
  return kExitDone;
}

absl::StatusOr<int> Export(const CheckpointFlags& flags) {
  if (flags.out.empty()) return Usage("export needs --out FILE");
  SYNCLINE_ASSIGN_OR_RETURN(const auto store, Open(flags));
  SYNCLINE_ASSIGN_OR_RETURN(const CheckpointName name, Find(*store, flags));
  SYNCLINE_ASSIGN_OR_RETURN(const auto reader,
                            CheckpointReader::Open(*store, flags.job, name));
  SYNCLINE_RETURN_IF_ERROR(WriteWeightsFile(*reader, flags.out));
  std::cout << flags.out << ": the weights of job " << Printable(flags.job) << " at step "
            << name.step << ", " << reader->manifest().tensors.size() << " tensors\n";
  return kExitDone;
}

absl::StatusOr<int> Delete(const CheckpointFlags& flags) {
  if (!CheckpointName::Parse(flags.name)) {
    return Usage(
        "delete needs a job and the full name of a checkpoint, as list shows it");
  }
  SYNCLINE_ASSIGN_OR_RETURN(const auto store, Open(flags));
  SYNCLINE_ASSIGN_OR_RETURN(const CheckpointName name, Find(*store, flags));
  SYNCLINE_ASSIGN_OR_RETURN(const auto all, ListCheckpoints(*store, FolderOf(flags.job)));
  const bool is_there = std::ranges::any_of(
      all, [&](const CheckpointInfo& one) { return one.name == name; });
  if (!is_there) return ReadManifest(*store, flags.job, name).status();
  SYNCLINE_RETURN_IF_ERROR(DeleteCheckpoint(*store, flags.job, name));
  std::cout << "checkpoint " << name.ToString() << " of job " << Printable(flags.job)
            << " is deleted\n";
  return kExitDone;
}

// Returns the job's "checkpoint" in the status; null when the job is over.
absl::StatusOr<Json> CheckpointOf(const CheckpointFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string text,
                            FetchStatusJson(flags.coordinator, flags.tls, kTimeout));
  const Json status = Json::parse(text, nullptr, false);
  if (!status.is_object()) return absl::InternalError("a status that is not JSON");
  const Json jobs = status.value("jobs", Json::array());
  for (const Json& job : jobs) {
    const std::string phase = job.value("phase", "");
    const bool runs = phase != "over" && phase != "failed";
    if (job.value("name", "") == flags.job && runs) {
      return job.value("checkpoint", Json::object());
    }
  }
  return Json();
}

absl::StatusOr<uint64_t> Order(const CheckpointFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(
      const CoordinatorCaller coordinator,
      CoordinatorCaller::Connect(flags.coordinator, flags.tls, kTimeout));
  v1::CreateCheckpointRequest request;
  request.set_job(flags.job);
  SYNCLINE_ASSIGN_OR_RETURN(
      const v1::CreateCheckpointReply reply,
      coordinator.Call(&v1::Coordinator::Stub::CreateCheckpoint, request, kTimeout));
  return reply.finished();
}

absl::StatusOr<int> Create(const CheckpointFlags& flags) {
  if (flags.job.empty()) return Usage("create needs the name of a running job");
  SYNCLINE_ASSIGN_OR_RETURN(const absl::Duration wait,
                            ParseDurationFlag("--wait", flags.wait));
  SYNCLINE_ASSIGN_OR_RETURN(const uint64_t before, Order(flags));
  const SteadyClock clock;
  for (;;) {
    SYNCLINE_ASSIGN_OR_RETURN(const Json now, CheckpointOf(flags));
    if (!now.is_object()) {
      return absl::UnavailableError(
          absl::StrCat("job '", Printable(flags.job), "' ended before it was saved"));
    }
    const uint64_t finished =
        now.value("written", uint64_t{0}) + now.value("failed", uint64_t{0});
    if (finished > before && !now.value("error", "").empty()) {
      return Unusable(absl::InternalError(now.value("error", "")));
    }
    if (finished > before) {
      std::cout << absl::StrFormat(
          "checkpoint %s: %s in %.1f s\n", now.value("latest", ""),
          HumanBytes(now.value("bytes", 0.0)), now.value("seconds", 0.0));
      return kExitDone;
    }
    if (clock.Now() >= wait) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the checkpoint of job '", Printable(flags.job), "' is not complete after ",
          absl::FormatDuration(wait), "; it may still be: see syncline status"));
    }
    absl::SleepFor(kAskEvery);
  }
}

using Action = absl::StatusOr<int> (*)(const CheckpointFlags&);

}  // namespace

void AddCheckpoint(CLI::App& app, Command* selected) {
  CLI::App* checkpoint = app.add_subcommand(
      "checkpoint", "Make, check, export and delete checkpoints of jobs");
  checkpoint->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, Action action) {
    auto flags = std::make_shared<CheckpointFlags>();
    CLI::App* command = checkpoint->add_subcommand(name, help);
    command->add_option("job", flags->job, "Name of the job");
    command->callback([=] {
      *selected = [flags, action]() -> absl::StatusOr<int> {
        if (action == Create) return Asking(*flags, action);
        absl::StatusOr<int> done = action(*flags);
        if (done.ok()) return done;
        return Unusable(done.status());
      };
    });
    return std::pair(command, flags);
  };
  const auto [create, order] = add("create", "Save a running job now", Create);
  AddCoordinatorFlag(*create, &order->coordinator);
  create->add_option("--wait", order->wait, "How long to wait until it is complete")
      ->capture_default_str();
  AddTlsFlags(*create, &order->tls);
  const struct {
    const char* name;
    const char* help;
    Action action;
  } kOfFiles[] = {
      {"list", "List checkpoints", List},
      {"show", "Show what a checkpoint contains", Show},
      {"verify", "Read a checkpoint and check all its checksums", Verify},
      {"export", "Write a checkpoint's weights as one safetensors file", Export},
      {"delete", "Delete one", Delete}};
  for (const auto& one : kOfFiles) {
    const auto [command, flags] = add(one.name, one.help, one.action);
    if (one.action != List) {
      command->add_option("checkpoint", flags->name, "latest, or a name as list shows it")
          ->capture_default_str();
    }
    command->add_option("--checkpoint-dir", flags->directory,
                        "Where they are: a directory, or s3://BUCKET/PREFIX");
    if (one.action == Export) {
      command->add_option("--out", flags->out, "File to write");
    }
    if (one.action == List || one.action == Show) {
      AddOutputFlag(*command, &flags->format);
    }
  }
}

}  // namespace syncline

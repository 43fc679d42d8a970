#include "server/service/job_convert.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/announcement.h"
#include "comm/rpc/job_settings_proto.h"
#include "server/service/backup_convert.h"

namespace syncline {
namespace {

template <typename Repeated>
void WriteOptions(const OptionValues& values, Repeated& out) {
  for (const auto& [name, value] : values) {
    v1::Option& option = *out.Add();
    option.set_name(name);
    option.set_value(value);
  }
}

void WriteNamed(const NamedOptions& options, v1::NamedOptions& out) {
  out.set_name(options.name);
  WriteOptions(options.values, *out.mutable_options());
}

// If two options have the same name, the last one counts.
template <typename Repeated>
OptionValues ReadOptions(const Repeated& options) {
  OptionValues values;
  for (const v1::Option& option : options) values[option.name()] = option.value();
  return values;
}

NamedOptions ReadNamed(const v1::NamedOptions& in) {
  return {in.name(), ReadOptions(in.options())};
}

void WriteJob(const JobSpec& spec, v1::JobSpec& out) {
  out.set_name(spec.name);
  out.set_workers(spec.workers);
  out.set_ranks(spec.ranks);
  ToProto(spec.settings, out);
  ToProto(spec.training, *out.mutable_training());
  for (const TensorSpec& tensor : spec.tensors) {
    v1::TensorSpec& written = *out.add_tensors();
    written.set_name(tensor.name);
    for (const uint64_t size : tensor.shape) written.add_shape(size);
    written.set_learning_rate_scale(tensor.group.learning_rate_scale);
    WriteOptions(tensor.group.options, *written.mutable_options());
    written.set_state(tensor.group.state);
    written.set_frozen(tensor.group.frozen);
  }
}

absl::StatusOr<JobSpec> Parse(const std::string& bytes) {
  v1::JobSpec spec;
  if (spec.ParseFromString(bytes)) return FromProto(spec);
  return absl::InvalidArgumentError(
      absl::StrCat("a job's declaration of ", bytes.size(), " bytes cannot be read"));
}

}  // namespace

void ToProto(const TrainingSettings& training, v1::TrainingSpec& out) {
  WriteNamed({training.optimizer.name, training.optimizer.options},
             *out.mutable_optimizer());
  out.set_state(training.optimizer.state);
  WriteNamed(training.schedule, *out.mutable_schedule());
  WriteOptions(training.gradient, *out.mutable_gradient());
  WriteNamed(training.loss_scaling, *out.mutable_loss_scaling());
  out.set_skip_nonfinite_steps(training.nonfinite_steps == NonfiniteSteps::kSkip);
  out.set_accumulate_steps(training.accumulate_steps);
  out.set_aggregate_on_arrival(training.aggregation == Aggregation::kArrival);
  WriteNamed(training.mode, *out.mutable_mode());
}

TrainingSettings FromProto(const v1::TrainingSpec& in) {
  return {.optimizer = {.name = in.optimizer().name(),
                        .options = ReadOptions(in.optimizer().options()),
                        .state = in.state()},
          .schedule = ReadNamed(in.schedule()),
          .gradient = ReadOptions(in.gradient()),
          .loss_scaling = ReadNamed(in.loss_scaling()),
          .nonfinite_steps =
              in.skip_nonfinite_steps() ? NonfiniteSteps::kSkip : NonfiniteSteps::kApply,
          .accumulate_steps = std::max<uint32_t>(in.accumulate_steps(), 1),
          .aggregation =
              in.aggregate_on_arrival() ? Aggregation::kArrival : Aggregation::kRankOrder,
          .mode = in.has_mode() ? ReadNamed(in.mode()) : NamedOptions{.name = "bsp"}};
}

std::string SendableError(std::string_view text) {
  constexpr size_t kMaxErrorBytes = 4000;
  return Printable(text, kMaxErrorBytes);
}

absl::Status ErrorOf(uint32_t code, const std::string& message) {
  constexpr auto kLargest = static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  if (code == 0 || code > kLargest) return absl::InternalError(message);
  return {static_cast<absl::StatusCode>(code), message};
}

JobSpec FromProto(const v1::JobSpec& in) {
  JobSpec spec{.name = in.name(),
               .workers = in.workers(),
               .ranks = in.ranks(),
               .settings = JobSettingsOf(in),
               .training = FromProto(in.training())};
  for (const v1::TensorSpec& tensor : in.tensors()) {
    spec.tensors.push_back({.name = tensor.name(),
                            .shape = {tensor.shape().begin(), tensor.shape().end()},
                            .group = {.learning_rate_scale = tensor.learning_rate_scale(),
                                      .options = ReadOptions(tensor.options()),
                                      .state = tensor.state(),
                                      .frozen = tensor.frozen()}});
  }
  return spec;
}

UpdateJob FromProto(const v1::UpdateJobRequest& in) {
  UpdateJob update{.job = in.job(), .optimizer = ReadOptions(in.optimizer())};
  if (in.has_schedule()) update.schedule = ReadNamed(in.schedule());
  if (in.has_mode()) update.mode = ReadNamed(in.mode());
  if (in.has_goals()) update.goals = in.goals();
  if (in.has_answers()) update.answers = in.answers();
  return update;
}

Declaration Declare(const JobSpec& spec) {
  v1::JobSpec message;
  WriteJob(spec, message);
  auto bytes = std::make_shared<const std::string>(message.SerializeAsString());
  std::string digest = Sha256(*bytes);
  return {.digest = std::move(digest), .bytes = std::move(bytes)};
}

DeclarationReader WireDeclarations() {
  return {.digest = [](const std::string& bytes) { return Sha256(bytes); },
          .parse = Parse};
}

absl::StatusOr<ConfigureJob> FromProto(const v1::ConfigureJob& in) {
  SYNCLINE_ASSIGN_OR_RETURN(JobSpec spec, Parse(in.spec()));
  ConfigureJob configure = {.job = in.job(),
                            .first_shard = in.first_shard(),
                            .checkpoint_run = in.checkpoint_run(),
                            .restore_run = in.restore_run(),
                            .generation = in.generation()};
  if (in.resume_run() > 0) configure.resume_from = {in.resume_run(), in.resume_step()};
  SYNCLINE_ASSIGN_OR_RETURN(configure.declared, MakeDeclaredJob({}, std::move(spec)));
  if (in.has_backup()) configure.backup = Read(in.backup());
  v1::Placement placement;
  if (!placement.ParseFromString(in.placement())) {
    return absl::InvalidArgumentError("the placement of a job's blocks cannot be read");
  }
  auto placed = std::make_shared<JobPlacement>();
  placed->shard_of_block = {placement.shard_of_block().begin(),
                            placement.shard_of_block().end()};
  configure.placement = std::move(placed);
  return configure;
}

const std::string& SharedBytes::Of(const std::shared_ptr<const JobPlacement>& placement) {
  if (placement != placement_) {
    v1::Placement message;
    message.mutable_shard_of_block()->Assign(placement->shard_of_block.begin(),
                                             placement->shard_of_block.end());
    placement_bytes_ = message.SerializeAsString();
    placement_ = placement;
  }
  return placement_bytes_;
}

const std::string& SharedBytes::Of(
    const std::shared_ptr<const std::vector<std::string>>& addresses) {
  if (addresses != addresses_) {
    v1::ShardAddresses message;
    for (const std::string& address : *addresses) message.add_addresses(address);
    addresses_bytes_ = message.SerializeAsString();
    addresses_ = addresses;
  }
  return addresses_bytes_;
}

void ToProto(const ConfigureJob& configure, SharedBytes& shared, v1::ConfigureJob& out) {
  out.set_job(configure.job);
  out.set_name(configure.declared->spec.name);
  out.set_spec(*configure.declared->declaration.bytes);
  out.set_placement(shared.Of(configure.placement));
  out.set_first_shard(configure.first_shard);
  out.set_checkpoint_run(configure.checkpoint_run);
  out.set_restore_run(configure.restore_run);
  out.set_generation(configure.generation);
  if (configure.backup) Write(*configure.backup, *out.mutable_backup());
  if (!configure.resume_from) return;
  out.set_resume_run(configure.resume_from->run);
  out.set_resume_step(configure.resume_from->step);
}

}  // namespace syncline

// Declarations without a wire format, for tests: hellos that announce them, members that
// send them when asked, and a shell that carries out a coordinator's orders at once.
//
//   DeclaredSpecs specs;
//   outputs = specs.Apply(coordinator, FromMember{7, specs.Hello(job)}, now);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

class DeclaredSpecs {
 public:
  // Returns the hello of a worker of this job.
  WorkerHello Hello(const JobSpec& spec, WorkerHello hello = {}) {
    const std::string bytes = BytesOf(spec);
    hello.job = spec.name;
    hello.digest = DigestOf(bytes);
    hello.job_bytes = bytes.size();
    specs_[bytes] = spec;
    bytes_[hello.digest] = std::make_shared<const std::string>(bytes);
    return hello;
  }

  JobDeclaration Declaration(const std::string& digest) const {
    return {bytes_.at(digest)};
  }

  DeclarationReader reader() const {
    return {.digest = DigestOf,
            .parse = [this](const std::string& bytes) -> absl::StatusOr<JobSpec> {
              const auto spec = specs_.find(bytes);
              if (spec == specs_.end()) return absl::InvalidArgumentError("no job");
              return spec->second;
            }};
  }

  // Returns the outputs of `input` and of all that follows from it: orders are carried
  // out at once, and members send at once what they are asked for.
  CoordinatorOutputs Apply(Coordinator& coordinator, const CoordinatorInput& input,
                           absl::Duration now) const {
    CoordinatorOutputs all;
    Append(coordinator, input, now, all);
    return all;
  }

  static std::string DigestOf(const std::string& bytes) {
    std::string digest;
    for (uint64_t seed = 1; digest.size() < 32; ++seed) {
      uint64_t hash = seed * 0xcbf29ce484222325u;  // FNV-1a
      for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
      for (int i = 0; i < 8; ++i) digest.push_back(static_cast<char>(hash >> (8 * i)));
    }
    return digest;
  }

 private:
  void Append(Coordinator& coordinator, const CoordinatorInput& input, absl::Duration now,
              CoordinatorOutputs& all) const {
    for (CoordinatorOutput& output : coordinator.Apply(input, now)) {
      if (const auto* prepare = std::get_if<Prepare>(&output)) {
        Append(coordinator, CarryOut(prepare->order, reader()), now, all);
        continue;
      }
      const auto* message = std::get_if<ToMember>(&output);
      const auto* asked =
          message == nullptr ? nullptr : std::get_if<DescribeJob>(&message->body);
      if (asked != nullptr && bytes_.contains(asked->digest)) {
        Append(coordinator, FromMember{message->connection, Declaration(asked->digest)},
               now, all);
        continue;
      }
      all.push_back(std::move(output));
    }
  }

  static std::string Written(const OptionValues& values) {
    return absl::StrJoin(values, ",", absl::PairFormatter("="));
  }
  static std::string Written(const NamedOptions& options) {
    return absl::StrCat(options.name, "(", Written(options.values), ")");
  }

  // Different for different jobs.
  static std::string BytesOf(const JobSpec& spec) {
    const TrainingSettings& training = spec.training;
    std::string bytes = absl::StrCat(spec.name, ";", spec.workers, ";", spec.ranks, ";");
    for (const JobSetting& setting : kJobSettings) {
      absl::StrAppend(&bytes, GetJobSetting(setting, spec.settings), ";");
    }
    absl::StrAppend(&bytes, training.optimizer.name, "(",
                    Written(training.optimizer.options), ")", training.optimizer.state,
                    ";", Written(training.schedule), ";", Written(training.gradient), ";",
                    Written(training.loss_scaling), ";");
    absl::StrAppend(&bytes, training.nonfinite_steps == NonfiniteSteps::kSkip, ";",
                    training.accumulate_steps, ";",
                    training.aggregation == Aggregation::kArrival, ";",
                    Written(training.mode), ";", spec.settings.goals, ";");
    for (const TensorSpec& tensor : spec.tensors) {
      absl::StrAppend(&bytes, tensor.name, "[", absl::StrJoin(tensor.shape, ","), "]",
                      tensor.group.learning_rate_scale, Written(tensor.group.options),
                      tensor.group.state, tensor.group.frozen, ";");
    }
    return bytes;
  }

  std::map<std::string, JobSpec> specs_;                             // by their bytes
  std::map<std::string, std::shared_ptr<const std::string>> bytes_;  // by digest
};

}  // namespace syncline

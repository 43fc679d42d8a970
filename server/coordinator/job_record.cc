#include "server/coordinator/job_record.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "comm/base/crc32c.h"
#include "comm/base/status.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/manifest.h"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr int kRecordVersion = 1;

// Bytes of any kind.
std::string Hex(std::string_view bytes) {
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

std::string HexOf(const SecretKey& key) {
  if (key.empty()) return "";
  return Hex({reinterpret_cast<const char*>(key.bytes().data()), SecretKey::kBytes});
}

SecretKey KeyFrom(const std::string& hex) {
  const std::string bytes = absl::HexStringToBytes(hex);
  return SecretKey::From(std::as_bytes(std::span(bytes))).value_or(SecretKey());
}

// Settings are written as a manifest, with a checksum. A manifest needs a tensor, so it
// gets a placeholder; the job's tensors are in its declaration.
std::string Written(const TrainingSettings& training, const JobRecord& record) {
  return WriteManifest({.job = record.name,
                        .declared = training,
                        .training = training,
                        .loss_scaler = record.scaler,
                        .skipped_steps = record.skipped,
                        .tensors = {{.name = "declared"}}});
}

Json ToJson(const RecordedEpoch& epoch, const JobRecord& record) {
  Json members = Json::array();
  for (size_t i = 0; i < epoch.members.size(); ++i) {
    const MemberRecord& member = epoch.members[i];
    members.push_back({{"rank", member.rank},
                       {"incarnation", member.incarnation},
                       {"first_step", member.first_step},
                       {"session_key", member.session_key},
                       {"key", HexOf(member.key)},
                       {"name", Hex(epoch.names[i])}});
  }
  Json json = {{"epoch", epoch.epoch},
               {"members", std::move(members)},
               {"reason", Hex(epoch.reason)},
               {"training_from", epoch.training_from}};
  if (epoch.training) json["training"] = Written(*epoch.training, record);
  if (epoch.staleness) json["staleness"] = *epoch.staleness;
  return json;
}

absl::Status Read(const Json& json, RecordedEpoch& epoch) {
  epoch.epoch = json.at("epoch");
  epoch.reason = absl::HexStringToBytes(json.at("reason").get<std::string>());
  epoch.training_from = json.at("training_from");
  for (const Json& member : json.at("members")) {
    epoch.members.push_back({.rank = member.at("rank"),
                             .incarnation = member.at("incarnation"),
                             .first_step = member.at("first_step"),
                             .session_key = member.at("session_key"),
                             .key = KeyFrom(member.at("key"))});
    epoch.names.push_back(absl::HexStringToBytes(member.at("name").get<std::string>()));
  }
  if (json.contains("staleness")) epoch.staleness = json.at("staleness");
  if (!json.contains("training")) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(const Manifest settings, ParseManifest(json.at("training")));
  epoch.training = settings.training;
  return absl::OkStatus();
}

Json ToJson(const std::vector<RecordedServer>& servers) {
  Json all = Json::array();
  for (const RecordedServer& server : servers) {
    Json addresses = Json::array();
    for (const std::string& address : server.shard_addresses) {
      addresses.push_back(Hex(address));
    }
    all.push_back({{"server", server.identity.server},
                   {"incarnation", server.identity.incarnation},
                   {"name", Hex(server.name)},
                   {"host", Hex(server.host)},
                   {"addresses", std::move(addresses)},
                   {"moved_in", server.moved_in},
                   {"backup_lost", Hex(server.backup_lost)},
                   {"journal_generation", server.journal_generation},
                   {"journal_lost", Hex(server.journal_lost)}});
  }
  return all;
}

void Read(const Json& json, std::vector<RecordedServer>& servers) {
  for (const Json& one : json) {
    RecordedServer& server = servers.emplace_back();
    server.identity = {.server = one.at("server"), .incarnation = one.at("incarnation")};
    server.name = absl::HexStringToBytes(one.at("name").get<std::string>());
    server.host = absl::HexStringToBytes(one.value("host", ""));
    server.moved_in = one.value("moved_in", uint64_t{0});
    server.backup_lost = absl::HexStringToBytes(one.value("backup_lost", ""));
    server.journal_generation = one.value("journal_generation", uint32_t{0});
    server.journal_lost = absl::HexStringToBytes(one.value("journal_lost", ""));
    for (const std::string hex : one.at("addresses")) {
      server.shard_addresses.push_back(absl::HexStringToBytes(hex));
    }
  }
}

// Numbers are stored bit for bit, so that infinities and NaN are kept.
Json ToJson(const StepDecision& decided) {
  const Decision& decision = decided.decision;
  Json figures = Json::array();
  for (const double figure : decision.figures) {
    figures.push_back(std::bit_cast<uint64_t>(figure));
  }
  return {{"step", decided.step},
          {"gradient_scale", std::bit_cast<uint32_t>(decision.gradient_scale)},
          {"skip", decision.skip},
          {"loss_scale", std::bit_cast<uint32_t>(decision.loss_scale)},
          {"figures", std::move(figures)},
          {"scale", std::bit_cast<uint32_t>(decided.scaler.scale)},
          {"growth_tracker", decided.scaler.growth_tracker},
          {"hysteresis", decided.scaler.hysteresis},
          {"skipped", decided.skipped}};
}

StepDecision DecisionFrom(const Json& json, uint32_t job) {
  StepDecision decided = {.job = job, .step = json.at("step")};
  Decision& decision = decided.decision;
  decision.gradient_scale =
      std::bit_cast<float>(json.at("gradient_scale").get<uint32_t>());
  decision.skip = json.at("skip");
  decision.loss_scale = std::bit_cast<float>(json.at("loss_scale").get<uint32_t>());
  for (const Json& figure : json.at("figures")) {
    decision.figures.push_back(std::bit_cast<double>(figure.get<uint64_t>()));
  }
  decided.scaler = {.scale = std::bit_cast<float>(json.at("scale").get<uint32_t>()),
                    .growth_tracker = json.at("growth_tracker"),
                    .hysteresis = json.at("hysteresis")};
  decided.skipped = json.at("skipped");
  return decided;
}

Json ToJson(const CheckpointView& saved) {
  return {{"latest", saved.latest},    {"step", saved.step},
          {"bytes", saved.bytes},      {"seconds", absl::ToDoubleSeconds(saved.took)},
          {"written", saved.written},  {"failed", saved.failed},
          {"error", Hex(saved.error)}, {"resumed_from", saved.resumed_from}};
}

CheckpointView SavedFrom(const Json& json) {
  return {.latest = json.at("latest"),
          .step = json.at("step"),
          .bytes = json.at("bytes"),
          .took = absl::Seconds(json.at("seconds").get<double>()),
          .written = json.at("written"),
          .failed = json.at("failed"),
          .error = absl::HexStringToBytes(json.at("error").get<std::string>()),
          .resumed_from = json.at("resumed_from")};
}

Json ToJson(const std::vector<RecordedExclusion>& excluded) {
  Json all = Json::array();
  for (const RecordedExclusion& one : excluded) {
    all.push_back({{"rank", one.rank}, {"host", Hex(one.host)}, {"times", one.times}});
  }
  return all;
}

std::vector<RecordedExclusion> ExclusionsFrom(const Json& json) {
  std::vector<RecordedExclusion> excluded;
  for (const Json& one : json) {
    excluded.push_back({.rank = one.at("rank"),
                        .host = absl::HexStringToBytes(one.at("host").get<std::string>()),
                        .times = one.at("times")});
  }
  return excluded;
}

// Returns whether the field can have this value.
bool Fits(const Json& value, const std::string& field) {
  static constexpr std::string_view kWide[] = {
      "step",    "epoch",   "first_step", "session_key",  "training_from",
      "figures", "skipped", "decided",    "last_cut",     "latest",
      "bytes",   "written", "failed",     "resumed_from", "moved_in"};
  // A server may report any of these numbers.
  static constexpr std::string_view kSigned[] = {"growth_tracker", "hysteresis"};
  if (std::ranges::find(kSigned, field) != std::end(kSigned)) {
    return value.is_number_integer() && value == Json(value.get<int32_t>());
  }
  if (!value.is_number_unsigned()) return false;
  const bool is_wide = std::ranges::find(kWide, field) != std::end(kWide);
  return is_wide || value.get<uint64_t>() <= std::numeric_limits<uint32_t>::max();
}

// The JSON library converts any number to the type that is asked for, also -1, 1e308 and
// numbers with too many bits.
absl::Status CheckNumbers(const Json& json, const std::string& name) {
  for (const auto& [key, value] : json.items()) {
    const std::string& field = json.is_array() ? name : key;
    if (value.is_structured()) SYNCLINE_RETURN_IF_ERROR(CheckNumbers(value, field));
    if (!value.is_number() || field == "seconds" || Fits(value, field)) continue;
    return absl::DataLossError(absl::StrCat("its field '", field, "' is ", value.dump()));
  }
  return absl::OkStatus();
}

// Throws the JSON library's errors.
absl::StatusOr<JobRecord> RecordFrom(const Json& json) {
  JobRecord record = {
      .id = json.at("id"),
      .run_id = absl::HexStringToBytes(json.at("run_id").get<std::string>()),
      .digest = absl::HexStringToBytes(json.at("digest").get<std::string>()),
      .update_is_due = json.at("update_is_due"),
      .decided = json.at("decided"),
      .step = json.at("step"),
      .placement_sum = json.at("placement_sum"),
      .journal = json.value("journal", ""),
      .run = json.at("run"),
      .last_cut = json.at("last_cut"),
      .saves_last = json.value("saves_last", false),
      .saved = SavedFrom(json.at("saved"))};
  SYNCLINE_RETURN_IF_ERROR(Read(json.at("epoch"), record.epoch));
  SYNCLINE_ASSIGN_OR_RETURN(const Manifest settings, ParseManifest(json.at("settings")));
  record.name = settings.job;
  record.training = settings.training;
  record.scaler = settings.loss_scaler;
  record.skipped = settings.skipped_steps;
  Read(json.at("servers"), record.servers);
  if (json.contains("goals")) {  // older records have none
    record.goals = absl::HexStringToBytes(json.at("goals").get<std::string>());
  }
  if (json.contains("answers")) {
    record.answers = absl::HexStringToBytes(json.at("answers").get<std::string>());
    record.excluded = ExclusionsFrom(json.at("excluded"));
    record.exclusions = json.at("exclusions");
  }
  if (json.contains("decision")) {
    record.decision = DecisionFrom(json.at("decision"), record.id);
  }
  return record;
}

}  // namespace

std::string RecordKey(uint32_t job) { return absl::StrCat(kJobRecords, job); }

std::string DeclarationKey(uint32_t job) {
  return absl::StrCat(RecordKey(job), "/declaration");
}

uint32_t SumOf(const JobPlacement& placement) {
  return Crc32c(std::as_bytes(std::span(placement.shard_of_block)));
}

std::string WriteJobRecord(const JobRecord& record) {
  Json json = {{"version", kRecordVersion},
               {"id", record.id},
               {"run_id", Hex(record.run_id)},
               {"digest", Hex(record.digest)},
               {"epoch", ToJson(record.epoch, record)},
               {"settings", Written(record.training, record)},
               {"goals", Hex(record.goals)},
               {"answers", Hex(record.answers)},
               {"excluded", ToJson(record.excluded)},
               {"exclusions", record.exclusions},
               {"update_is_due", record.update_is_due},
               {"decided", record.decided},
               {"step", record.step},
               {"servers", ToJson(record.servers)},
               {"placement_sum", record.placement_sum},
               {"journal", record.journal},
               {"run", record.run},
               {"last_cut", record.last_cut},
               {"saves_last", record.saves_last},
               {"saved", ToJson(record.saved)}};
  if (record.decision) json["decision"] = ToJson(*record.decision);
  return json.dump();
}

absl::StatusOr<JobRecord> ParseJobRecord(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return absl::DataLossError("it is cut off, or not JSON");
  try {
    if (json.value("version", 0) != kRecordVersion) {
      return absl::DataLossError("it is of another version");
    }
    SYNCLINE_RETURN_IF_ERROR(CheckNumbers(json, ""));
    return RecordFrom(json);
  } catch (const Json::exception& error) {
    return absl::DataLossError(
        absl::StrCat("a field is missing or malformed: ", error.what()));
  }
}

}  // namespace syncline

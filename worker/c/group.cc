// Implements the groups of syncline.h.
#include "worker/c/group.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "worker/c/handles.h"

using syncline::c::CallOf;
using syncline::c::CheckProcess;
using syncline::c::GivenGroup;
using syncline::c::GroupOf;
using syncline::c::Guarded;
using syncline::c::HandleOf;
using syncline::c::NullArgument;
using syncline::collective::Call;
using syncline::collective::CollectiveOp;
using syncline::collective::ElementType;
using syncline::collective::Group;
using syncline::collective::GroupOptions;
using syncline::collective::ReduceOp;

namespace {

// Limit of a stored value. What a member tells the others is shorter.
constexpr size_t kLongestValue = 4096;

class CallersStore final : public syncline::collective::Store {
 public:
  explicit CallersStore(const syncline_store& store) : store_(store) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    if (store_.set(store_.context, key.c_str(), value.data(), value.size()) == 0) {
      return absl::OkStatus();
    }
    return absl::UnavailableError(
        absl::StrCat("the group's store did not accept '", key, "'"));
  }

  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration timeout) override {
    std::array<char, kLongestValue> value = {};
    size_t bytes = value.size();
    if (store_.get(store_.context, key.c_str(), absl::ToInt64Milliseconds(timeout),
                   value.data(), &bytes) != 0 ||
        bytes > value.size()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the group's store does not have '", key, "' within ",
          absl::FormatDuration(timeout), ": has the rank that sets it been started?"));
    }
    return std::string(value.data(), bytes);
  }

 private:
  const syncline_store store_;
};

// Returns the fields that the caller knows; all others are zero.
template <typename Struct>
absl::StatusOr<Struct> Read(const Struct* given, size_t least, const char* name) {
  if (given == nullptr) return NullArgument(name);
  Struct known = {};
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < least) {
    return absl::InvalidArgumentError(absl::StrCat("struct_size of a ", name, " is ",
                                                   size, ", but must be its sizeof"));
  }
  std::memcpy(&known, given, std::min(size, sizeof known));
  return known;
}

std::string OrEmpty(const char* given) { return given != nullptr ? given : ""; }

absl::StatusOr<syncline::TcpSecurity> SecurityOf(const std::string& name) {
  for (const auto known : {syncline::TcpSecurity::kTls, syncline::TcpSecurity::kPlain}) {
    if (name == syncline::TcpSecurityName(known)) return known;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("security of a group is '", name, "', but must be 'tls' or 'plain'"));
}

void SetTime(int64_t given_ms, absl::Duration* time) {
  if (given_ms > 0) *time = absl::Milliseconds(given_ms);
}

}  // namespace

namespace syncline::c {

absl::Status CheckProcess(pid_t made_by) {
  if (made_by == getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the group was made by process ", made_by,
                   ", and this is a child of it; make a group of its own here"));
}

absl::Status CheckProcess(const syncline_group* group) {
  return group == nullptr ? NullArgument("group") : CheckProcess(group->process);
}

absl::StatusOr<Call> CallOf(int ranks, const syncline_call* given) {
  SYNCLINE_ASSIGN_OR_RETURN(
      const syncline_call known,
      Read(given, offsetof(syncline_call, send_counts), "syncline_call"));
  const auto op = static_cast<int>(known.op);
  const auto dtype = static_cast<int>(known.dtype);
  const auto reduction = static_cast<int>(known.reduction);
  if (op < 0 || op > static_cast<int>(CollectiveOp::kSendReceive) || dtype < 0 ||
      dtype >= syncline::collective::kElementTypes || reduction < 0 ||
      reduction >= syncline::collective::kReduceOps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no operation ", op, ", type ", dtype, " or reduction ", reduction, " is known"));
  }
  constexpr size_t kWithFactor = offsetof(syncline_call, factor) + sizeof known.factor;
  if (known.reduction == SYNCLINE_PREMULTIPLIED_SUM && known.struct_size < kWithFactor) {
    return absl::InvalidArgumentError(
        "a premultiplied sum needs the field factor: struct_size is of a syncline_call "
        "without it");
  }
  Call call = {.op = static_cast<CollectiveOp>(op),
               .type = static_cast<ElementType>(dtype),
               .reduce = static_cast<ReduceOp>(reduction),
               .factor = known.factor,
               .input = known.input,
               .output = known.output,
               .count = known.count,
               .root = static_cast<int>(known.root),
               .source = static_cast<int>(known.source),
               .tag = known.tag,
               .label = OrEmpty(known.label),
               .timeout = absl::Milliseconds(known.timeout_ms)};
  if ((known.send_counts == nullptr) != (known.receive_counts == nullptr)) {
    return absl::InvalidArgumentError(
        "of send_counts and receive_counts one is NULL: give both, or neither");
  }
  if (known.send_counts != nullptr) {
    call.send_counts.assign(known.send_counts, known.send_counts + ranks);
    call.receive_counts.assign(known.receive_counts, known.receive_counts + ranks);
  }
  if (known.algorithm != nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(call.algorithm,
                              collective::ParseAlgorithm(known.algorithm));
  }
  return call;
}

absl::StatusOr<GivenGroup> GroupOf(const syncline_group_options* given) {
  SYNCLINE_ASSIGN_OR_RETURN(
      const syncline_group_options known,
      Read(given, offsetof(syncline_group_options, failure_timeout_ms),
           "syncline_group_options"));
  if (known.name == nullptr) return NullArgument("name");
  if (known.store.set == nullptr || known.store.get == nullptr) {
    return NullArgument("store");
  }
  GivenGroup group;
  group.store = std::make_unique<CallersStore>(known.store);
  group.options = {.name = known.name,
                   .rank = static_cast<int>(known.rank),
                   .ranks = static_cast<int>(known.ranks),
                   .store = group.store.get(),
                   .exact_order = known.exact_order != 0,
                   .address = OrEmpty(known.address),
                   .host = OrEmpty(known.host),
                   .costs = OrEmpty(known.costs)};
  if (const std::string security = OrEmpty(known.security); !security.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(group.options.security, SecurityOf(security));
  }
  SetTime(known.failure_timeout_ms, &group.options.failure_timeout);
  SetTime(known.timeout_ms, &group.options.timeout);
  SetTime(known.start_timeout_ms, &group.options.start_timeout);
  return group;
}

}  // namespace syncline::c

syncline_code syncline_group_create(const syncline_group_options* options,
                                    syncline_group** out) {
  return Guarded([&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    SYNCLINE_ASSIGN_OR_RETURN(const GivenGroup given, GroupOf(options));
    SYNCLINE_ASSIGN_OR_RETURN(auto made, Group::Create(given.options));
    std::string costs = made->DescribeCosts();
    *out = new syncline_group{.group = std::move(made), .costs = std::move(costs)};
    return absl::OkStatus();
  });
}

const char* syncline_group_describe_costs(const syncline_group* group) {
  return group == nullptr ? "" : group->costs.c_str();
}

void syncline_group_free(syncline_group* group) {
  // In a child process the group's threads do not exist, so it cannot be ended.
  if (group == nullptr || !CheckProcess(group).ok()) return;
  Guarded([&] {
    delete group;
    return absl::OkStatus();
  });
}

syncline_code syncline_group_run(syncline_group* group, const syncline_call* call) {
  return Guarded([&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(group));
    SYNCLINE_ASSIGN_OR_RETURN(Call known, CallOf(group->group->ranks(), call));
    return group->group->Run(std::move(known));
  });
}

syncline_code syncline_group_start(syncline_group* group, const syncline_call* call,
                                   syncline_handle** out) {
  return Guarded([&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(group));
    SYNCLINE_ASSIGN_OR_RETURN(Call known, CallOf(group->group->ranks(), call));
    SYNCLINE_ASSIGN_OR_RETURN(auto handle, group->group->Start(std::move(known)));
    *out = new HandleOf<Group>(*group->group, std::move(handle));
    return absl::OkStatus();
  });
}

syncline_code syncline_handle_wait(syncline_handle* handle, int64_t timeout_ms) {
  return Guarded([&]() -> absl::Status {
    if (handle == nullptr) return NullArgument("handle");
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(handle->process));
    return handle->Wait(timeout_ms == SYNCLINE_FOREVER ? absl::InfiniteDuration()
                                                       : absl::Milliseconds(timeout_ms));
  });
}

int syncline_handle_is_done(const syncline_handle* handle) {
  return handle != nullptr && handle->IsDone() ? 1 : 0;
}

void syncline_handle_free(syncline_handle* handle) { delete handle; }

void syncline_group_abort(syncline_group* group) {
  Guarded([&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(group));
    group->group->Abort();
    return absl::OkStatus();
  });
}

void syncline_group_settle(syncline_group* group) {
  Guarded([&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(group));
    group->group->Settle();
    return absl::OkStatus();
  });
}

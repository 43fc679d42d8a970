// Groups of syncline.h.
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

using syncline::c::CheckProcess;
using syncline::c::Guarded;
using syncline::c::NullArgument;
using syncline::collective::Call;
using syncline::collective::CollectiveOp;
using syncline::collective::ElementType;
using syncline::collective::Group;
using syncline::collective::GroupOptions;
using syncline::collective::ReduceOp;

struct syncline_handle {
  syncline_group* group;
  Group::Handle handle;
};

namespace {

// What a member tells the others fits easily.
constexpr size_t kLongestValue = 4096;

class CallersStore final : public syncline::collective::Store {
 public:
  explicit CallersStore(const syncline_store& store) : store_(store) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    if (store_.set(store_.context, key.c_str(), value.data(), value.size()) == 0) {
      return absl::OkStatus();
    }
    return absl::UnavailableError(
        absl::StrCat("the store of the group did not take '", key, "'"));
  }

  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration timeout) override {
    std::array<char, kLongestValue> value = {};
    size_t bytes = value.size();
    if (store_.get(store_.context, key.c_str(), absl::ToInt64Milliseconds(timeout),
                   value.data(), &bytes) != 0 ||
        bytes > value.size()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the store of the group does not have '", key, "' within ",
                       absl::FormatDuration(timeout),
                       ": has the rank that it belongs to been started?"));
    }
    return std::string(value.data(), bytes);
  }

 private:
  const syncline_store store_;
};

// The fields that the caller knows; the others are zero.
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

}  // namespace

namespace syncline::c {

absl::Status CheckProcess(const syncline_group* group) {
  if (group == nullptr) return NullArgument("group");
  if (group->process == getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the group was made by process ", group->process,
                   ", and this is a child of it; make a group of its own here"));
}

}  // namespace syncline::c

namespace {

std::string OrEmpty(const char* given) { return given != nullptr ? given : ""; }

// Whatever it is, it is checked by the group, which knows what there is.
absl::StatusOr<Call> CallOf(const syncline_group& group, const syncline_call* given) {
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
  const auto ranks = static_cast<size_t>(group.group->ranks());
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
                              syncline::collective::ParseAlgorithm(known.algorithm));
  }
  return call;
}

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

syncline_code syncline_group_create(const syncline_group_options* options,
                                    syncline_group** out) {
  return Guarded([&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    SYNCLINE_ASSIGN_OR_RETURN(
        const syncline_group_options known,
        Read(options, offsetof(syncline_group_options, failure_timeout_ms),
             "syncline_group_options"));
    if (known.name == nullptr) return NullArgument("name");
    if (known.store.set == nullptr || known.store.get == nullptr) {
      return NullArgument("store");
    }
    CallersStore store(known.store);
    GroupOptions group = {.name = known.name,
                          .rank = static_cast<int>(known.rank),
                          .ranks = static_cast<int>(known.ranks),
                          .store = &store,
                          .address = OrEmpty(known.address),
                          .host = OrEmpty(known.host)};
    if (const std::string security = OrEmpty(known.security); !security.empty()) {
      SYNCLINE_ASSIGN_OR_RETURN(group.security, SecurityOf(security));
    }
    group.exact_order = known.exact_order != 0;
    SetTime(known.failure_timeout_ms, &group.failure_timeout);
    SetTime(known.timeout_ms, &group.timeout);
    SetTime(known.start_timeout_ms, &group.start_timeout);
    SYNCLINE_ASSIGN_OR_RETURN(auto made, Group::Create(group));
    *out = new syncline_group{std::move(made)};
    return absl::OkStatus();
  });
}

void syncline_group_free(syncline_group* group) {
  // In a child the group's threads are not there: it cannot be ended, only forgotten.
  if (group == nullptr || !CheckProcess(group).ok()) return;
  Guarded([&] {
    delete group;
    return absl::OkStatus();
  });
}

syncline_code syncline_group_run(syncline_group* group, const syncline_call* call) {
  return Guarded([&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(group));
    SYNCLINE_ASSIGN_OR_RETURN(Call known, CallOf(*group, call));
    return group->group->Run(std::move(known));
  });
}

syncline_code syncline_group_start(syncline_group* group, const syncline_call* call,
                                   syncline_handle** out) {
  return Guarded([&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(group));
    SYNCLINE_ASSIGN_OR_RETURN(Call known, CallOf(*group, call));
    SYNCLINE_ASSIGN_OR_RETURN(auto handle, group->group->Start(std::move(known)));
    *out = new syncline_handle{group, std::move(handle)};
    return absl::OkStatus();
  });
}

syncline_code syncline_handle_wait(syncline_handle* handle, int64_t timeout_ms) {
  return Guarded([&]() -> absl::Status {
    if (handle == nullptr) return NullArgument("handle");
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(handle->group));
    return handle->group->group->Wait(
        handle->handle, timeout_ms == SYNCLINE_FOREVER ? absl::InfiniteDuration()
                                                       : absl::Milliseconds(timeout_ms));
  });
}

int syncline_handle_is_done(const syncline_handle* handle) {
  return handle != nullptr && handle->group->group->IsDone(handle->handle) ? 1 : 0;
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

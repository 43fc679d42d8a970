// Implements the compressed all-reduces of syncline.h.
#include "comm/collective/compressed/compressed_all_reduce.h"

#include <memory>
#include <utility>

#include "comm/base/status.h"
#include "worker/c/group.h"
#include "worker/c/handles.h"

using syncline::c::CheckProcess;
using syncline::c::FreeInItsProcess;
using syncline::c::Guarded;
using syncline::c::NullArgument;
using syncline::collective::CompressedAllReduce;

struct syncline_compressed {
  std::shared_ptr<syncline::collective::Group> group;
  pid_t process;
  std::unique_ptr<CompressedAllReduce> reduce;
};

syncline_code syncline_compressed_check_codec(const char* codec) {
  return Guarded([&]() -> absl::Status {
    if (codec == nullptr) return NullArgument("codec");
    return CompressedAllReduce::CheckCodec(codec);
  });
}

syncline_code syncline_compressed_create(syncline_group* group, const char* codec,
                                         size_t count, uint64_t seed,
                                         syncline_compressed** out) {
  return Guarded([&]() -> absl::Status {
    if (out == nullptr) return NullArgument("out");
    if (codec == nullptr) return NullArgument("codec");
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(group));
    SYNCLINE_ASSIGN_OR_RETURN(auto made,
                              CompressedAllReduce::Create({.group = group->group.get(),
                                                           .codec = codec,
                                                           .elements = count,
                                                           .seed = seed}));
    *out = new syncline_compressed{group->group, group->process, std::move(made)};
    return absl::OkStatus();
  });
}

syncline_code syncline_compressed_mean(syncline_compressed* compressed, float* values,
                                       size_t count) {
  return Guarded([&]() -> absl::Status {
    if (compressed == nullptr) return NullArgument("compressed");
    if (values == nullptr && count > 0) return NullArgument("values");
    SYNCLINE_RETURN_IF_ERROR(CheckProcess(compressed->process));
    return compressed->reduce->Mean({values, count});
  });
}

uint64_t syncline_compressed_sent_bytes(const syncline_compressed* compressed) {
  return compressed == nullptr ? 0 : compressed->reduce->sent_bytes();
}

void syncline_compressed_free(syncline_compressed* compressed) {
  FreeInItsProcess(compressed);
}

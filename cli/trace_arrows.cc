#include "cli/trace_arrows.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace syncline {
namespace {

// Identifies a contribution on its way: (rank, block, step).
using Flow = std::tuple<uint16_t, uint32_t, uint64_t>;

class Finder {
 public:
  void Note(TracePlace place, const TraceSpan& span) {
    const Flow flow = {span.rank, span.block, span.step};
    if (span.kind == TraceKind::kEncodeBlock) encoded_.try_emplace(flow, place);
    if (span.kind == TraceKind::kDecodeBlock) decoded_.insert_or_assign(flow, place);
    const bool is_step = span.kind == TraceKind::kStep;
    if (is_step || span.kind == TraceKind::kReceive)
      received_.insert_or_assign(flow, Receipt{place, is_step});
    if (is_step)
      made_.insert_or_assign({place.member, place.track, span.block, span.step}, place);
  }

  std::vector<TraceArrow> Find() const {
    std::vector<TraceArrow> arrows;
    for (const auto& [flow, encoded] : encoded_) {
      const auto received = received_.find(flow);
      const auto decoded = decoded_.find(flow);
      if (received == received_.end() || decoded == decoded_.end()) continue;
      TraceArrow arrow{.encoded = encoded,
                       .received = received->second.place,
                       .decoded = decoded->second};
      if (!received->second.makes_step) {
        const TracePlace* made = StepOf(flow, arrow.received);
        if (made != nullptr && made->time_ns > arrow.received.time_ns) arrow.made = *made;
      }
      arrows.push_back(arrow);
    }
    return arrows;
  }

 private:
  struct Receipt {
    TracePlace place = {};
    bool makes_step = false;  // in mode asp each one does
  };

  // Returns where the block's step was made: on the track that received its contribution,
  // in a span of this block or, after a decision, of all blocks.
  const TracePlace* StepOf(const Flow& flow, const TracePlace& received) const {
    const auto& [rank, block, step] = flow;
    for (const uint32_t of : {block, TraceSpan::kNoBlock}) {
      const auto found = made_.find({received.member, received.track, of, step});
      if (found != made_.end()) return &found->second;
    }
    return nullptr;
  }

  std::map<Flow, TracePlace> encoded_;
  std::map<Flow, Receipt> received_;
  std::map<Flow, TracePlace> decoded_;
  std::map<std::tuple<size_t, size_t, uint32_t, uint64_t>, TracePlace> made_;
};

// How far each clock may be moved. Each demand (later, earlier) -> L means that the first
// member's clock is to be moved forward by at least L more than the second one's.
class Clocks {
 public:
  explicit Clocks(const std::vector<TraceFileMember>& members) : members_(members) {
    for (const TraceFileMember& member : members) {
      const auto bound = member.clock ? static_cast<int64_t>(member.clock->error_ns) : 0;
      least_.push_back(-bound);
      most_.push_back(bound);
    }
  }

  void Demand(const TracePlace& earlier, const TracePlace& later) {
    const auto& from = members_[earlier.member].clock;
    const auto& to = members_[later.member].clock;
    if (!from || !to || earlier.member == later.member) return;
    const int64_t back =
        earlier.time_ns + from->offset_ns + 1 - later.time_ns - to->offset_ns;
    const auto [at, is_new] = demands_.try_emplace({later.member, earlier.member}, back);
    if (!is_new) at->second = std::max(at->second, back);
  }

  // Returns whether clocks exist that meet all demands. A chain of demands has at most as
  // many links as there are members, unless it closes to a circle that nothing meets.
  bool Solve() {
    for (size_t round = 0; round <= members_.size(); ++round) {
      bool changed = false;
      for (const auto& [pair, back] : demands_) {
        const auto& [later, earlier] = pair;
        const int64_t least = least_[earlier] + back, most = most_[later] - back;
        changed = changed || least > least_[later] || most < most_[earlier];
        least_[later] = std::max(least_[later], least);
        most_[earlier] = std::min(most_[earlier], most);
        if (least_[later] > most_[later] || least_[earlier] > most_[earlier])
          return false;
      }
      if (!changed) return true;
    }
    return false;
  }

  // The middles of all ranges meet all demands together. Rounding keeps that, because
  // demands are whole numbers and each middle is rounded down.
  int64_t Shift(size_t member) const {
    const int64_t sum = least_[member] + most_[member];
    return sum >= 0 ? sum / 2 : -((1 - sum) / 2);
  }
  uint64_t Bound(size_t member) const {
    return static_cast<uint64_t>(most_[member] - least_[member] + 1) / 2;
  }

 private:
  const std::vector<TraceFileMember>& members_;
  std::map<std::pair<size_t, size_t>, int64_t> demands_;
  std::vector<int64_t> least_;
  std::vector<int64_t> most_;
};

}  // namespace

std::vector<TraceArrow> FindArrows(const TraceData& data) {
  Finder finder;
  for (size_t member = 0; member < data.members.size(); ++member) {
    size_t track = 0;
    for (const auto& [name, spans] : data.members[member].tracks) {
      for (const TraceSpan& span : spans) {
        if (span.step < data.first_step || span.step >= data.until) continue;
        const int64_t length = std::max<int64_t>(span.end_ns - span.begin_ns, 0);
        finder.Note({member, track, span.begin_ns + length / 2}, span);
      }
      ++track;
    }
  }
  return finder.Find();
}

std::vector<std::optional<TraceFileMember::Clock>> ClocksOf(
    const std::vector<TraceArrow>& arrows, const std::vector<TraceFileMember>& members) {
  std::vector<std::optional<TraceFileMember::Clock>> found;
  for (const TraceFileMember& member : members) found.push_back(member.clock);
  Clocks clocks(members);
  for (const TraceArrow& arrow : arrows) {
    clocks.Demand(arrow.encoded, arrow.received);
    clocks.Demand(arrow.made.value_or(arrow.received), arrow.decoded);
  }
  if (!clocks.Solve()) return found;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i]) continue;
    found[i]->offset_ns += clocks.Shift(i);
    found[i]->error_ns = clocks.Bound(i);
  }
  return found;
}

}  // namespace syncline

#include "cli/trace_file.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/trace_arrows.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

bool IsPhase(TraceKind kind) { return kind <= TraceKind::kDecode; }

// Returns whether spans of this kind may overlap each other. Such spans are not the work
// of one thread.
bool Overlaps(TraceKind kind) {
  switch (kind) {
    case TraceKind::kPushBlock:
    case TraceKind::kAwaitBlock:
    case TraceKind::kHold:
    case TraceKind::kDecide:
    case TraceKind::kSend:
    case TraceKind::kJournal:
      return true;
    default:
      return false;
  }
}

class Writer {
 public:
  Writer(const TraceData& data, std::ostream& out)
      : data_(data),
        arrows_(FindArrows(data)),
        clocks_(ClocksOf(arrows_, data.members)),
        out_(out) {}

  TraceSummary Write() {
    FindZero();
    out_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
    for (size_t i = 0; i < data_.members.size(); ++i) WriteMember(i);
    WriteArrows();
    FindMissing();
    out_ << "\n],\"otherData\":"
         << About().dump(-1, ' ', true, Json::error_handler_t::replace) << "}\n";
    return std::move(summary_);
  }

 private:
  static std::string RoleOf(const TraceFileMember& member) {
    return absl::StrCat(member.is_worker ? "worker " : "server ", member.number);
  }

  bool IsInWindow(const TraceSpan& span) const {
    return span.step >= data_.first_step && span.step < data_.until;
  }

  // Returns the time on the coordinator's clock. If the clocks were not compared, returns
  // the member's time.
  int64_t Aligned(size_t member, int64_t time) const {
    return time + (clocks_[member] ? clocks_[member]->offset_ns : 0);
  }

  void FindZero() {
    int64_t zero = std::numeric_limits<int64_t>::max();
    for (size_t i = 0; i < data_.members.size(); ++i) {
      for (const auto& [name, spans] : data_.members[i].tracks) {
        for (const TraceSpan& span : spans) {
          if (IsInWindow(span)) zero = std::min(zero, Aligned(i, span.begin_ns));
        }
      }
    }
    zero_ = zero == std::numeric_limits<int64_t>::max() ? 0 : zero;
  }

  // Microseconds with three decimals are exact nanoseconds.
  static std::string Micros(int64_t ns) {
    return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000);
  }

  static std::string Quoted(const std::string& text) {
    return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
  }

  void Begin() { out_ << (std::exchange(is_first_, false) ? "\n" : ",\n"); }

  void Name(const char* what, size_t process, size_t thread, const std::string& name) {
    Begin();
    out_ << absl::StrFormat(
        R"({"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"name":%s}})", what, process,
        thread, Quoted(name));
  }

  void Sort(const char* what, size_t process, size_t thread, size_t place) {
    Begin();
    out_ << absl::StrFormat(
        R"({"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"sort_index":%d}})", what,
        process, thread, place);
  }

  void WriteMember(size_t index) {
    const TraceFileMember& member = data_.members[index];
    const size_t process = index + 1;
    Name("process_name", process, 0,
         absl::StrCat(RoleOf(member), member.name.empty() ? "" : " ", member.name));
    Sort("process_sort_index", process, 0,
         member.is_worker ? 2000 + member.number : member.number);
    size_t thread = FirstThreadOf(process);
    for (const auto& [name, spans] : member.tracks) {
      Name("thread_name", process, thread, name);
      Sort("thread_sort_index", process, thread, PlaceOf(name, thread));
      WriteTrack(index, thread, spans);
      ++thread;
    }
  }

  static size_t FirstThreadOf(size_t process) { return process * 1000 + 1; }

  // The program's tracks stand above those of its blocks.
  static size_t PlaceOf(const std::string& track, size_t thread) {
    return track == "program" ? 0 : track == "model" ? 1 : thread;
  }

  void WriteTrack(size_t index, size_t thread, const std::vector<TraceSpan>& spans) {
    std::vector<TraceSpan> sorted;
    for (TraceSpan span : spans) {
      if (!IsInWindow(span)) continue;
      span.begin_ns = Aligned(index, span.begin_ns) - zero_;
      span.end_ns = std::max(Aligned(index, span.end_ns) - zero_, span.begin_ns);
      sorted.push_back(span);
      steps_[index].insert(span.step);
    }
    std::ranges::stable_sort(sorted, [](const TraceSpan& a, const TraceSpan& b) {
      return std::pair(a.begin_ns, -a.end_ns) < std::pair(b.begin_ns, -b.end_ns);
    });
    WriteSteps(index + 1, thread, sorted);
    for (const TraceSpan& span : sorted) {
      ++summary_.spans;
      if (Overlaps(span.kind)) {
        WriteOverlapping(index + 1, thread, span);
      } else {
        WriteSlice(index + 1, thread, span);
      }
    }
  }

  // Draws each step of a program around its phases. Skips tracks whose steps are not in
  // order.
  void WriteSteps(size_t process, size_t thread, const std::vector<TraceSpan>& sorted) {
    std::vector<TraceSpan> steps;
    for (const TraceSpan& span : sorted) {
      if (!IsPhase(span.kind)) continue;
      if (!steps.empty() && span.step < steps.back().step) return;
      if (steps.empty() || span.step != steps.back().step) {
        steps.push_back(span);
      } else {
        steps.back().end_ns = std::max(steps.back().end_ns, span.end_ns);
      }
    }
    for (const TraceSpan& step : steps) {
      Begin();
      out_ << absl::StrFormat(
          R"({"ph":"X","name":"step %d","cat":"step","pid":%d,"tid":%d,"ts":%s,"dur":%s})",
          step.step, process, thread, Micros(step.begin_ns),
          Micros(step.end_ns - step.begin_ns));
    }
  }

  std::string Arguments(const TraceSpan& span) const {
    std::string arguments = absl::StrCat("{\"step\":", span.step);
    if (span.block != TraceSpan::kNoBlock) {
      absl::StrAppend(&arguments, ",\"block\":", span.block);
    }
    if (span.block < data_.blocks.size()) {
      absl::StrAppend(&arguments, ",\"tensor\":", Quoted(data_.blocks[span.block]));
    }
    if (span.rank != TraceSpan::kNoRank) {
      absl::StrAppend(&arguments, ",\"rank\":", span.rank);
    }
    return absl::StrCat(arguments, "}");
  }

  void WriteSlice(size_t process, size_t thread, const TraceSpan& span) {
    Begin();
    out_ << absl::StrFormat(
        R"({"ph":"X","name":"%s","cat":"%s","pid":%d,"tid":%d,"ts":%s,"dur":%s,"args":%s})",
        kTraceKindNames[static_cast<size_t>(span.kind)],
        IsPhase(span.kind) ? "phase" : "work", process, thread, Micros(span.begin_ns),
        Micros(span.end_ns - span.begin_ns), Arguments(span));
  }

  void WriteOverlapping(size_t process, size_t thread, const TraceSpan& span) {
    const char* name = kTraceKindNames[static_cast<size_t>(span.kind)];
    const uint64_t id = ++last_id_;
    Begin();
    out_ << absl::StrFormat(
        R"({"ph":"b","name":"%s","cat":"way","id":"0x%x","pid":%d,"tid":%d,"ts":%s,"args":%s})",
        name, id, process, thread, Micros(span.begin_ns), Arguments(span));
    Begin();
    out_ << absl::StrFormat(
        R"({"ph":"e","name":"%s","cat":"way","id":"0x%x","pid":%d,"tid":%d,"ts":%s})",
        name, id, process, thread, Micros(span.end_ns));
  }

  void WriteArrows() {
    for (const TraceArrow& arrow : arrows_) {
      ++summary_.flows;
      const uint64_t id = ++last_id_;
      WriteArrow("s", id, arrow.encoded);
      WriteArrow("t", id, arrow.received);
      if (arrow.made) WriteArrow("t", id, *arrow.made);
      WriteArrow("f", id, arrow.decoded);
    }
  }

  void WriteArrow(const char* phase, uint64_t id, const TracePlace& place) {
    const size_t process = place.member + 1;
    Begin();
    out_ << absl::StrFormat(
        R"({"ph":"%s","name":"block","cat":"flow","id":"0x%x","bp":"e","pid":%d,"tid":%d,"ts":%s})",
        phase, id, process, FirstThreadOf(process) + place.track,
        Micros(Aligned(place.member, place.time_ns) - zero_));
  }

  void FindMissing() {
    if (!data_.ended.empty()) summary_.missing.push_back(data_.ended);
    for (size_t i = 0; i < data_.members.size(); ++i) {
      const TraceFileMember& member = data_.members[i];
      const auto says = [&](const auto&... what) {
        summary_.missing.push_back(absl::StrCat(RoleOf(member), " ", what...));
      };
      if (!member.answered) {
        says(member.gone ? "left before it recorded anything"
                         : "did not answer: is it of an older version?");
        continue;
      }
      if (member.gone) says("left before it had sent everything");
      if (!member.gone && !member.done) says("has not sent everything");
      if (member.lost > 0) says("had no room for ", member.lost, " spans");
      if (member.dropped > 0) {
        says("sent ", member.dropped, " spans more than the coordinator keeps");
      }
      if (!member.clock) says("has a clock of unknown offset: its times may be shifted");
      uint64_t lacking = 0;
      std::optional<uint64_t> first;
      for (uint64_t step = data_.first_step; step < data_.until; ++step) {
        if (steps_[i].contains(step)) continue;
        ++lacking;
        if (!first) first = step;
      }
      if (lacking > 0)
        says("recorded nothing of ", lacking, " steps, the first is ", *first);
    }
  }

  Json About() const {
    Json about = {{"job", data_.job},
                  {"syncline", data_.version},
                  {"first_step", data_.first_step},
                  {"steps", data_.until - data_.first_step},
                  {"missing", summary_.missing},
                  {"members", Json::array()}};
    for (size_t i = 0; i < data_.members.size(); ++i) {
      const TraceFileMember& member = data_.members[i];
      Json one = {{"member", RoleOf(member)},
                  {"name", member.name},
                  {"complete", member.answered && member.done},
                  {"lost_spans", member.lost},
                  {"dropped_spans", member.dropped}};
      if (const auto& clock = clocks_[i]) {
        one["clock_error_ns"] = clock->error_ns;
        // Unix time of ts 0 on this member's host, to align files of other profilers.
        one["unix_ns_at_zero"] = clock->unix_ns + zero_ - clock->offset_ns;
      }
      about["members"].push_back(std::move(one));
    }
    return about;
  }

  const TraceData& data_;
  const std::vector<TraceArrow> arrows_;
  const std::vector<std::optional<TraceFileMember::Clock>> clocks_;
  std::ostream& out_;
  int64_t zero_ = 0;
  bool is_first_ = true;
  uint64_t last_id_ = 0;
  std::map<size_t, std::set<uint64_t>> steps_;  // steps that each member has spans of
  TraceSummary summary_;
};

}  // namespace

TraceSummary WriteTrace(const TraceData& data, std::ostream& out) {
  return Writer(data, out).Write();
}

}  // namespace syncline

// How the coordinator acts by itself when jobs miss their goals (goal_answers.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/coordinator/coordinator_impl.h"

namespace syncline {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);

}  // namespace

// A job keeps the record of its past answers if the setting is removed and set again.
void Coordinator::Impl::AnswerGoals() {
  if (now_ - answered_at_ < kLookEvery) return;
  answered_at_ = now_;
  std::erase_if(answering_, [&](const auto& known) {
    return std::ranges::none_of(jobs_, [&](const auto& entry) {
      return entry.second->id() == known.first && !entry.second->IsOver();
    });
  });
  for (const auto& [name, job] : jobs_) {
    if (job->IsOver()) continue;
    auto known = answering_.find(job->id());
    if (known == answering_.end() && job->answers() == "none") continue;
    const absl::StatusOr<AnswerSpec> spec = ParseAnswers(job->answers());
    if (!spec.ok()) continue;  // only in a record that was edited by hand
    if (known == answering_.end()) {
      known = answering_.emplace(job->id(), Answering{job->answers(), GoalAnswers(*spec)})
                  .first;
      if (job->was_restored()) known->second.answers.Resume(job->exclusions(), now_);
    }
    if (std::exchange(known->second.setting, job->answers()) != job->answers()) {
      known->second.answers.Set(*spec);
    }
    if (!spec->empty()) LookForAnswer(*job, known->second.answers);
  }
}

void Coordinator::Impl::LookForAnswer(Job& job, GoalAnswers& answers) {
  JobView view = job.View(now_, {});
  if (MayMoveShares()) view.standby = job.Standby(ConnectedServers(), now_);
  const auto say = [&](const std::string& what, bool is_bad) {
    outbox_.Log(absl::StrCat("job '", view.name, "': ", what),
                is_bad ? LogReason::Level::kWarning : LogReason::Level::kInfo);
    outbox_.Add(CoordinatorEvent{.job = view.job,
                                 .job_name = view.name,
                                 .step = view.step,
                                 .kind = EventKind::kAnswer,
                                 .what = what});
  };
  const AnswerVerdict verdict = answers.Look(view, ViewGoals(job.id(), now_), now_);
  for (const AnswerNews& news : verdict.news) say(news.what, news.is_bad);
  if (!verdict.answer) return;
  const Answer& answer = *verdict.answer;
  if (const absl::Status given = Give(answer, job); !given.ok()) {
    const std::string why(given.message());
    answers.Refused(answer, why, now_);
    say(absl::StrCat(std::string(AnswerName(answer.kind)), " is not possible: ", why),
        true);
    return;
  }
  answers.Gave(answer, now_);
  if (answer.kind == AnswerKind::kStaleness) {  // an exclusion is reported by the job
    say(absl::StrCat("workers may be ", answer.staleness, " step",
                     answer.staleness == 1 ? "" : "s",
                     " ahead from now on: ", answer.why),
        true);
  }
  if (answer.kind == AnswerKind::kAddServer) say(answer.why, true);
}

absl::Status Coordinator::Impl::Give(const Answer& answer, Job& job) {
  const std::string& name = job.declared()->spec.name;
  switch (answer.kind) {
    case AnswerKind::kExcludeStraggler:
      return job.Exclude({.job = name,
                          .rank = answer.rank,
                          .why = answer.why,
                          .incarnation = answer.incarnation},
                         now_);
    case AnswerKind::kStaleness: {
      ServerMemories memory;
      for (const auto& [number, server] : servers_) memory[number] = MemoryOf(server);
      NamedOptions mode = {
          .name = "ssp",
          .values = {{"staleness", static_cast<double>(answer.staleness)}}};
      return job.Update({.job = name, .mode = std::move(mode)}, memory).status();
    }
    case AnswerKind::kAddServer:
      job.AllowMove(now_);
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

std::optional<AnswersView> Coordinator::Impl::ViewAnswers(const Job& job,
                                                          absl::Duration now) const {
  if (job.answers() == "none") return std::nullopt;
  const auto known = answering_.find(job.id());
  AnswersView view;
  if (known != answering_.end()) view = known->second.answers.View(now);
  view.setting = CanonicalAnswers(job.answers());
  return view;
}

}  // namespace syncline

"""The signs of each fault at each place, as functions of a look (places.py) and of the look before the fault."""

import re

EVENTS, STATUS, TOP, METRICS, ADVISE, DATA, PAGE, ALERTS = "events", "status", "top", "metrics", "advise", "data", "page", "alerts"
PLACES = (EVENTS, STATUS, TOP, METRICS, ADVISE, DATA, PAGE, ALERTS)
LATE = 0.3  # part of a failure timeout after which dashboard and top show a heartbeat as late


class Fault:
    """A fault and its signs by place; for ALERTS the alert's name. A place without a sign does not show this fault."""

    def __init__(self, name, signs):
        self.name, self.signs = name, signs


def happened(events, before, kind, pattern):
    """Whether such an event happened since the look `before`."""
    last = max((event["number"] for event in before.events), default=0)
    return any(event["number"] > last and event["kind"] == kind and re.search(pattern, event["what"]) for event in events)


def ranks(status):
    return [member["rank"] for member in status["members"]]


def told_of(look, job):
    """Returns the events of the job that the dashboard receives."""
    return [event for event in look.data["events"]["events"] if event["job"] == job]


def job_told(look):
    return next(job for job in look.data["status"]["jobs"] if job["job"] == look.status["job"])


def learning_rate(value):
    event = rf"lr from \S+ to {value:g}$"
    return Fault(f"learning rate set to {value:g}", {
        EVENTS: lambda look, before: happened(look.events, before, "settings", event),
        STATUS: lambda look, _: look.status["learning_rate"] == value,
        TOP: lambda look, _: f"learning rate {value:g}" in look.top and re.search(rf"settings +lr from \S+ to {value:g}", look.top),
        METRICS: lambda look, _: look.metric("syncline_learning_rate") == value,
        DATA: lambda look, before: job_told(look)["learning_rate"] == value
        and happened(told_of(look, look.status["job"]), before, "settings", event),
        PAGE: lambda look, _: "event settings" in look.page["marks"] and f"to {value:g}" in look.page["events"]
        and re.search(rf"Learning rate ({value:g}|{value:.2e})".replace("e-0", "e-0?"), look.page["tiles"]),
    })  # fmt: skip


def _lost(rank, workers, why):
    """Returns the signs of a worker that is gone for a reason."""
    what = rf"^worker {rank} \(.*{why}"
    left = workers - 1

    def deaths(look):
        return look.metric("syncline_epoch_changes_total", cause="death") or 0

    return {
        EVENTS: lambda look, before: happened(look.events, before, "death", what),
        STATUS: lambda look, before: rank not in ranks(look.status) and len(look.status["members"]) == left
        and happened(look.status["events"], before, "death", what),
        TOP: lambda look, _: f"{left} of {workers}" in look.top and re.search(rf"death +worker {rank} \(.*{why}", look.top),
        METRICS: lambda look, before: look.metric("syncline_members") == left and deaths(look) > deaths(before),
        DATA: lambda look, before: rank not in ranks(job_told(look)) and happened(told_of(look, look.status["job"]), before, "death", what),
        PAGE: lambda look, _: f"Workers {left} of {workers}" in look.page["tiles"] and re.search(rf"death .*worker {rank} \(.*{why}", look.page["events"]),
        ALERTS: "SynclineWorkersLost",
    }  # fmt: skip


def killed(rank, workers):
    return Fault(f"worker {rank} killed", _lost(rank, workers, "(connection broke|came back|ended)"))


def silent(rank):
    """Returns the fault of a worker that stands still: first, all places show late heartbeats."""

    def late(look):
        return LATE * look.failure_timeout

    def of_status(status, limit):
        return any(member["rank"] == rank and member["heartbeat_age_seconds"] > limit for member in status["members"])

    def in_top(look):
        beats = re.findall(rf"^ +{rank} \S+ .*% +([\d.]+)s ", look.top, re.MULTILINE)
        return any(float(beat) > late(look) for beat in beats)

    return Fault(f"worker {rank} stopped: late", {
        STATUS: lambda look, _: of_status(look.status, late(look)),
        TOP: lambda look, _: in_top(look),
        METRICS: lambda look, _: (look.metric("syncline_worker_heartbeat_age_seconds", rank=str(rank)) or 0) > late(look),
        DATA: lambda look, _: of_status(job_told(look), late(look)),
        PAGE: lambda look, _: str(rank) in look.page["silent"],
    })  # fmt: skip


def stopped(rank, workers):
    return Fault(f"worker {rank} stopped: dropped", _lost(rank, workers, "(silent|no heartbeat|heartbeats)"))


def slow_link(rank):
    """Returns the fault of a worker with a slow link, in a job with a goal for the step time."""
    goal = r"^goal step_p95_ms<=\S+ is missed"
    push = {"phase": "push"}

    def pushes(status):
        """Returns how long each worker has waited for its pushes since it joined, by rank."""
        return {member["rank"]: (member["phases"]["seconds"]["push"], member["phases"]["steps"]) for member in status["members"]}

    def pushes_longest(status, before):
        then, now = pushes(before.status), pushes(status)
        means = {of: (seconds - then[of][0]) / max(1, steps - then[of][1]) for of, (seconds, steps) in now.items() if of in then}
        return rank in means and means[rank] > 2 * max(mean for of, mean in means.items() if of != rank)

    def missed(status):
        return any(one["goal"] == "step_p95_ms" and one["missed"] for one in status["goals"])

    def grew(look, before, of):
        """Returns the growth of the counter of a phase."""
        name = "syncline_step_phase_seconds_total"
        return (look.metric(name, rank=str(of), **push) or 0) - (before.metric(name, rank=str(of), **push) or 0)

    def in_top(look):
        """Returns the phases of each worker: rank, ms per step, compute, encode, push."""
        found = {int(row[0]): float(row[4]) for row in re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +[\d.]+ +[\d.]+ +[\d.]+ ",
                                                                  look.top, re.MULTILINE)}  # fmt: skip
        return rank in found and found[rank] > 2 * max([ms for of, ms in found.items() if of != rank], default=0)

    def named(advice):
        return any(one["bound"] == "straggler" and f"worker {rank} pushes" in one["what"] for one in advice)

    return Fault(f"link of worker {rank} slowed", {
        EVENTS: lambda look, before: happened(look.events, before, "goal", goal),
        STATUS: lambda look, before: missed(look.status) and pushes_longest(look.status, before),
        TOP: lambda look, _: in_top(look) and re.search(r"goals: step_p95_ms<=\S+ missed,", look.top),
        METRICS: lambda look, before: (look.metric("syncline_goal_missed_windows", goal="step_p95_ms") or 0) >= 1
        and grew(look, before, rank) > 2 * max(grew(look, before, of) for of in ranks(look.status) if of != rank),
        ADVISE: lambda look, _: named(look.advise.get("advice", [])),
        DATA: lambda look, _: missed(job_told(look)) and any(job["job"] == look.status["job"] and named(job["advice"])
                                                             for job in look.data["advice"]["jobs"]),
        PAGE: lambda look, _: f"worker {rank} pushes" in look.page["advice-list"] and "missed" in look.page["goals-list"]
        and str(rank) in look.page["slow"],
        ALERTS: "SynclineGoalMissed",
    })  # fmt: skip

// Shows the goals of a job, and how much of the time in which they may be missed is left (docs/goals.md).

import {make} from "/elements.js";

const NAMES = {
  samples_per_s: ["Samples a second", ""],
  step_p95_ms: ["p95 step time", " ms"],
  participation: ["Workers in a step", ""],
  wire_mb_per_step: ["Wire, a worker and step", " MB"],
};

const figure = (value) => value.toLocaleString("en", {maximumSignificantDigits: 4});

function stateOf(goal) {
  if (goal.now === null) return ["no value yet", ""];
  if (goal.missed) return ["missed", "bad"];
  // A single missed window does not count as missed yet.
  if (goal.at_least ? goal.now < goal.limit : goal.now > goal.limit) return ["missed just now", "warn"];
  if (goal.missed_in_seconds !== null) {
    return [`missed in ${Math.max(1, Math.round(goal.missed_in_seconds / 60))} min`, "warn"];
  }
  return ["met", "good"];
}

// The burn rate is that of the last five minutes.
function budgetOf(goal) {
  const left = Math.round(100 * goal.budget_left);
  const what = goal.budget_left > 0 ? `${left} % of the hour's budget left` : "the hour's budget is spent";
  return goal.burn_rate_5m > 0 ? `${what}, burns at ${goal.burn_rate_5m.toFixed(1)} times the allowed rate` : what;
}

function cardOf(goal) {
  const [name, unit] = NAMES[goal.goal] ?? [goal.goal, ""];
  const [state, className] = stateOf(goal);
  const card = document.createElement("li");
  const top = make("p", "", "top");
  top.append(make("span", name), make("span", state, `state ${className}`));
  const now = make("p", goal.now === null ? "–" : `${figure(goal.now)}${unit}`, "now");
  now.append(make("span", ` ${goal.at_least ? "at least" : "at most"} ${figure(goal.limit)}${unit}`));
  const meter = document.createElement("meter");
  Object.assign(meter, {min: 0, max: 1, low: 0.25, high: 0.5, optimum: 1, value: goal.budget_left});
  meter.setAttribute("aria-label", `${name}: error budget left`);
  card.append(top, now, meter, make("p", budgetOf(goal), "budget"));
  return card;
}

// Returns what the coordinator may do by itself, what it did last, and what it waits for.
function answersOf(answers) {
  const card = document.createElement("li");
  card.append(make("p", `Answers: ${answers.setting}`, "top"), make("p", answers.state, "budget"));
  if (answers.last) {
    const minutes = Math.round(answers.last_age_seconds / 60);
    card.append(make("p", `The last one, ${minutes} min ago: ${answers.last}`, "budget"));
  }
  return card;
}

export function showGoals(section, list, job) {
  section.hidden = job.goals.length === 0 && !job.answers;
  list.replaceChildren(...job.goals.map(cardOf), ...(job.answers ? [answersOf(job.answers)] : []));
}

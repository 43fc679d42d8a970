// The events that the coordinator keeps, by job number. No two jobs ever have the same number, even if they have the
// same name. Events of servers and the coordinator have number 0.

import {make} from "/elements.js";

const MOST = 100;  // lines shown
const KEPT = 200;  // events of each job, as many as the coordinator keeps
// Kinds of events that may change a curve abruptly.
const MARKED = ["epoch", "settings", "stall", "recovery", "goal", "answer"];

export class Events {
  constructor() { this.clear(); }

  clear() {
    this.logs = new Map();  // events by job, oldest first
    this.lacks = false;     // events between the known ones are missing
  }

  // Adds events of any jobs, oldest first. Known events have no effect.
  take(events) {
    for (const event of events) {
      if (!this.logs.has(event.job)) this.logs.set(event.job, []);
      const log = this.logs.get(event.job);
      const last = log.at(-1)?.number;
      if (last !== undefined && event.number <= last) continue;
      this.lacks ||= last === undefined ? event.number > 1 : event.number > last + 1;
      log.push(event);
      if (log.length > KEPT) log.shift();
    }
  }

  // Replaces all events.
  replace(events) {
    this.clear();
    this.take(events);
    this.lacks = false;
  }

  of(job) { return this.logs.get(job) ?? []; }

  // Returns the events that charts of that job mark. Changes of epoch come first, so their causes are drawn over them.
  marks(job) {
    const marked = this.of(job).filter((event) => MARKED.includes(event.kind));
    return marked.sort((a, b) => (b.kind === "epoch") - (a.kind === "epoch"));
  }

  show(list, job) {
    const shown = [...this.of(0), ...(job ? this.of(job.job) : [])].sort((a, b) => a.time - b.time).slice(-MOST).reverse();
    list.replaceChildren(...(shown.length ? shown.map(lineOf) : [make("li", "Nothing yet.")]));
  }
}

function lineOf(event) {
  const line = document.createElement("li");
  const when = new Date(event.time * 1000);
  const time = make("time", when.toLocaleTimeString("en-GB"));
  time.dateTime = when.toISOString();
  const where = event.job ? `step ${event.step.toLocaleString("en")}: ` : "";
  line.append(time, make("span", event.kind, `kind ${event.kind}`), " ", where + event.what);
  return line;
}

// What happened, as the coordinator keeps it: of each job by its number, which no other job ever has, whatever its
// name. Number 0 is that of servers and coordinator.

import {make} from "/elements.js";

const MOST = 100;  // lines
const KEPT = 200;  // of a job, as the coordinator does
// What changes a curve from one moment to the next.
const MARKED = ["epoch", "settings", "stall", "recovery"];

export class Events {
  constructor() { this.clear(); }

  clear() {
    this.logs = new Map();  // events by job, oldest first
    this.lacks = false;     // something came between what was seen
  }

  // Some events of any jobs, oldest first; what is known already changes nothing.
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

  // All of them; what was there is forgotten.
  replace(events) {
    this.clear();
    this.take(events);
    this.lacks = false;
  }

  of(job) { return this.logs.get(job) ?? []; }

  // For charts of that job; a change of epoch lies under what it was made for.
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

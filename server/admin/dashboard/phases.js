// Shows where the time of a step goes: a bar for each worker, with the phases of docs/phases.md as its parts. All bars have
// the same scale.

import {make} from "/elements.js";

const WORKER_PHASES = ["compute", "encode", "push", "others", "publish", "decode"];
const SERVER_PHASES = ["hold", "decide", "step", "publish"];
const WINDOW_SECONDS = 10;
const ENOUGH_STEPS = 4;
const MEANING = {
  compute: "the program computes",
  encode: "waits for gradients being compressed",
  push: "waits for gradients on their way to the servers",
  others: "waits for other workers, and the servers' first step",
  publish: "waits for the rest of the new weights",
  decode: "waits for new weights being put in place",
};

function milliseconds(seconds) {
  const ms = seconds * 1000;
  return `${ms < 10 ? ms.toFixed(2) : ms < 100 ? ms.toFixed(1) : Math.round(ms).toLocaleString("en")} ms`;
}

// Sums of one worker or server, and how much they grew in a recent step.
class Sums {
  constructor() { this.kept = []; }

  // Returns {total, seconds by phase} of a step, or null if too few steps were seen.
  add(time, phases) {
    if (!phases) return null;
    const last = this.kept.at(-1);
    if (last && phases.steps < last.steps) this.kept = [];  // another process
    this.kept.push({time, ...phases});
    while (this.kept.length > 2 && this.kept[1].time < time - WINDOW_SECONDS && this.kept[1].steps < phases.steps) this.kept.shift();
    const steps = phases.steps - this.kept[0].steps;
    // Sums may be taken in the middle of a step. Over too few steps they would say little.
    if (steps < ENOUGH_STEPS && (steps <= 0 || time - this.kept[0].time < WINDOW_SECONDS)) return null;
    const seconds = {};
    let total = 0;
    for (const [phase, sum] of Object.entries(phases.seconds)) {
      seconds[phase] = Math.max(0, sum - this.kept[0].seconds[phase]) / steps;
      total += seconds[phase];
    }
    return {total, seconds};
  }
}

export class Phases {
  constructor(parent) {
    this.parent = parent;
    this.sums = new Map();  // by "job/rank/incarnation", or "job/server number"
    this.legend = make("p", undefined, "legend");
    for (const phase of WORKER_PHASES) {
      const entry = make("span", phase, phase);
      entry.title = MEANING[phase];
      this.legend.append(entry, " ");
    }
    this.bars = make("div", undefined, "bars");
    // Many bars scroll, with the keyboard too.
    Object.assign(this.bars, {tabIndex: 0, role: "region", ariaLabel: "Bars of workers"});
    this.servers = make("p", undefined, "server-phases");
    parent.append(this.legend, this.bars, this.servers);
  }

  #ofAStep(key, time, phases) {
    if (!this.sums.has(key)) this.sums.set(key, new Sums());
    return this.sums.get(key).add(time, phases);
  }

  show(job, time) {
    const seen = new Set();
    const ofAStep = (key, phases) => {
      seen.add(key);
      return this.#ofAStep(key, time, phases);
    };
    const workers = job.members.map((member) =>
      [member.rank, ofAStep(`${job.job}/${member.rank}/${member.incarnation}`, member.phases)]).filter(([, mean]) => mean);
    const servers = (job.server_phases ?? []).map((server) =>
      [server.server, ofAStep(`${job.job}/server ${server.server}`, server)]).filter(([, mean]) => mean);
    for (const key of this.sums.keys()) if (!seen.has(key)) this.sums.delete(key);
    this.parent.hidden = workers.length === 0;
    const longest = Math.max(...workers.map(([, mean]) => mean.total));
    this.bars.replaceChildren(...workers.map(([rank, mean]) => this.#bar(rank, mean, longest)));
    this.servers.replaceChildren(...servers.map(([number, mean]) => make("span",
      `Server ${number}: ${SERVER_PHASES.map((phase) => `${phase} ${milliseconds(mean.seconds[phase])}`).join(", ")}`)));
  }

  #bar(rank, mean, longest) {
    const line = make("div", undefined, "line");
    const bar = make("div", undefined, "bar");
    const said = WORKER_PHASES.map((phase) => `${phase} ${milliseconds(mean.seconds[phase])}`);
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", `Worker ${rank}, ${milliseconds(mean.total)} a step: ${said.join(", ")}`);
    for (const [i, phase] of WORKER_PHASES.entries()) {
      const part = make("span", undefined, phase);
      part.style.width = `${(100 * mean.seconds[phase]) / longest}%`;
      part.title = `${said[i]}: ${MEANING[phase]}`;
      bar.append(part);
    }
    line.append(make("span", `worker ${rank}`), bar, make("span", milliseconds(mean.total)));
    return line;
  }
}

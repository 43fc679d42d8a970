// Shows how long each worker is busy with a step itself, without waiting for others, and which workers are slow. Each has
// a line of the last minute, all on the same scale. Workers that wait for each other take equally long for a step, but are
// not busy equally long.

const NAMESPACE = "http://www.w3.org/2000/svg";
const OWN = ["compute", "encode", "push", "decode"];  // phases (docs/phases.md)
const KEPT = 60;    // points of a line
const RECENT = 10;  // points whose mean is shown
const WIDTH = 80;
const HEIGHT = 22;
const SLOW = 1.25;  // times the median of all
const OUTLIER = 2;  // times the longest mean; otherwise one long step would make all other lines flat

function median(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function milliseconds(seconds) {
  const ms = seconds * 1000;
  return `${ms < 10 ? ms.toFixed(2) : ms < 100 ? ms.toFixed(1) : Math.round(ms).toLocaleString("en")} ms`;
}

export class Sparks {
  constructor() { this.lines = new Map(); }  // by "job/rank/incarnation"

  // Takes what the coordinator saw earlier: `workers` of its history.
  begin(job, workers) {
    for (const {rank, incarnation, steps, seconds, points} of workers ?? []) {
      this.lines.set(`${job}/${rank}/${incarnation}`, {steps, own: seconds, points: [...points]});
    }
  }

  // Takes the present state of the job, for `of`.
  look(job) {
    const seen = new Set();
    this.means = new Map();  // by rank
    this.highest = 0;
    for (const member of job.members) {
      if (!member.phases?.steps) continue;
      const key = `${job.job}/${member.rank}/${member.incarnation}`;
      seen.add(key);
      const own = OWN.reduce((sum, phase) => sum + member.phases.seconds[phase], 0);
      const {steps} = member.phases;
      let line = this.lines.get(key);
      if (!line || steps < line.steps) this.lines.set(key, line = {steps, own, points: []});
      if (steps > line.steps) {
        line.points.push((own - line.own) / (steps - line.steps));
        if (line.points.length > KEPT) line.points.shift();
        Object.assign(line, {steps, own});
      }
      if (line.points.length === 0) continue;
      const recent = line.points.slice(-RECENT);
      this.means.set(member.rank, {points: line.points, mean: recent.reduce((sum, one) => sum + one, 0) / recent.length});
      this.highest = Math.max(this.highest, ...line.points);
    }
    // Lines of other jobs are kept, and continue when the job is shown again.
    for (const key of this.lines.keys()) if (key.startsWith(`${job.job}/`) && !seen.has(key)) this.lines.delete(key);
    const all = [...this.means.values()].map(({mean}) => mean);
    this.highest = Math.min(this.highest, OUTLIER * Math.max(...all));
    this.median = all.length > 1 ? median(all) : Infinity;
  }

  isSlow(rank) { return (this.means.get(rank)?.mean ?? 0) > SLOW * this.median; }

  // Returns the content of a table cell.
  of(rank) {
    const cell = document.createElement("span");
    cell.className = "spark";
    const known = this.means.get(rank);
    if (!known) {
      cell.textContent = "–";
      return cell;
    }
    const svg = document.createElementNS(NAMESPACE, "svg");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("aria-hidden", "true");  // the number beside it says the same
    const line = document.createElementNS(NAMESPACE, "polyline");
    const x = (i) => WIDTH - (known.points.length - 1 - i) * (WIDTH / (KEPT - 1));
    const y = (value) => HEIGHT - 1 - Math.min(1, value / (this.highest || 1)) * (HEIGHT - 2);
    line.setAttribute("points", known.points.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" "));
    svg.append(line);
    if (this.isSlow(rank)) {
      const mark = document.createElement("strong");
      mark.className = "slow";
      mark.textContent = "slow";
      mark.title = `the median of all workers is ${milliseconds(this.median)}`;
      cell.append(mark);
    }
    cell.append(svg, milliseconds(known.mean));
    return cell;
  }
}

// Computes how fast values grow: over time for charts, and between two updates for tables.

// Returns the rate at each point {time, [name]}, over the last three points, because heartbeats come irregularly.
export function rates(points, name) {
  return points.slice(1).map((point, i) => {
    const before = points[Math.max(0, i - 2)];
    const elapsed = point.time - before.time;
    return [point.time, elapsed > 0 ? Math.max(0, point[name] - before[name]) / elapsed : NaN];
  });
}

// Returns the rate of a value that grows once in each step. A step may take longer than the time between two points. So
// rates are measured from step to step, and hold until the next one. If three more steps should have been made, the rate is
// 0. The first point, and a point at which the value fell, may be in the middle of a step, so no rate begins there.
export function speeds(points, name) {
  let grown = [];  // indices of points at which the value had grown
  return points.slice(1).map((point, i) => {
    const at = i + 1;
    if (point[name] < points[i][name]) grown = [];
    if (point[name] > points[i][name]) grown.push(at);
    const last = grown.at(-1);
    let from = grown.length - 2;
    while (from > 0 && last - grown[from] < 2) --from;
    if (from < 0) return [point.time, grown.length ? NaN : 0];
    const first = grown[from];
    const took = points[last].time - points[first].time;
    const aStep = took / (grown.length - 1 - from);
    const stands = point.time - points[last].time > 3 * aStep;
    return [point.time, stands ? 0 : (points[last][name] - points[first][name]) / took];
  });
}

// Rates of members, with a key for each of their processes. A key that is not measured in a round is forgotten.
export class Rates {
  constructor() {
    this.last = new Map();  // {time, value} by key
    this.now = new Map();
  }

  begin() {
    this.last = this.now;
    this.now = new Map();
  }

  measure(key, time, value) {
    const known = this.last.get(key);
    this.now.set(key, {time, value});
    const elapsed = known ? time - known.time : 0;
    return elapsed > 0 ? Math.max(0, value - known.value) / elapsed : NaN;
  }
}

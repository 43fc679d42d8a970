// How fast things grow: over a time for charts, and from one look to the next for tables.

// At each of the points, {time, [name]}, over the last three, as heartbeats come by fits and starts.
export function rates(points, name) {
  return points.slice(1).map((point, i) => {
    const before = points[Math.max(0, i - 2)];
    const elapsed = point.time - before.time;
    return [point.time, elapsed > 0 ? Math.max(0, point[name] - before[name]) / elapsed : NaN];
  });
}

// Likewise of what grows with whole steps, which may take longer than points are apart: from one step to another, and until
// then what it was, or nothing once three more would have been made.
export function speeds(points, name) {
  let grown = [0];  // where it had grown since the point before
  return points.slice(1).map((point, i) => {
    const at = i + 1;
    if (point[name] < points[i][name]) grown = [at];
    if (point[name] > points[i][name]) grown.push(at);
    const last = grown.at(-1);
    let from = grown.length - 2;
    while (from > 0 && last - grown[from] < 2) --from;
    if (from < 0) return [point.time, 0];
    const first = grown[from];
    const took = points[last].time - points[first].time;
    const aStep = took / (grown.length - 1 - from);
    const stands = point.time - points[last].time > 3 * aStep;
    return [point.time, stands ? 0 : (points[last][name] - points[first][name]) / took];
  });
}

// Of members, by a key for each of their lives. Who is not measured in a round is forgotten.
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

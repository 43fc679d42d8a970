// A line over time as SVG. A point is [seconds, value]. A value that is not finite leaves a gap.

const NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 100;

function element(name, attributes = {}) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Returns the bounds of the values with a margin. The range is never empty.
function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  const air = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 ? Math.max(0, low - air) : low - air, high + air];
}

function ago(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  return `${Math.round(seconds / 60)} min ago`;
}

export class Chart {
  // `format` turns a value into a string.
  constructor(parent, title, format) {
    this.title = title;
    this.format = format;
    this.points = [];
    this.figure = document.createElement("figure");
    this.figure.className = "chart";
    const caption = document.createElement("figcaption");
    caption.textContent = title;
    this.readout = document.createElement("output");
    caption.append(this.readout);
    this.svg = element("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img"});
    this.svg.addEventListener("pointermove", (event) => this.#read(event));
    this.svg.addEventListener("pointerleave", () => this.#readLast());
    this.axis = document.createElement("div");
    this.axis.className = "axis";
    this.figure.append(caption, this.svg, this.axis);
    parent.append(this.figure);
  }

  // `events` are vertical marks: {time, kind, what}.
  show(points, events) {
    this.points = points;
    const finite = points.filter(([, value]) => Number.isFinite(value));
    this.figure.hidden = finite.length < 2;
    if (this.figure.hidden) return;
    this.begin = points[0][0];
    this.end = points.at(-1)[0];
    const [low, high] = range(finite.map(([, value]) => value));
    const x = (time) => ((time - this.begin) / (this.end - this.begin || 1)) * WIDTH;
    const y = (value) => HEIGHT - ((value - low) / (high - low)) * HEIGHT;
    const shapes = [0.25, 0.5, 0.75].map((part) =>
      element("line", {x1: 0, x2: WIDTH, y1: part * HEIGHT, y2: part * HEIGHT}));
    for (const {time, kind, what} of events) {
      if (time < this.begin || time > this.end) continue;
      const mark = element("line", {class: `event ${kind}`, x1: x(time), x2: x(time), y1: 0, y2: HEIGHT});
      mark.append(element("title"));
      mark.firstChild.textContent = what;
      shapes.push(mark);
    }
    let path = "";
    let pen = "M";
    for (const [time, value] of points) {
      if (Number.isFinite(value)) path += `${pen}${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = Number.isFinite(value) ? "L" : "M";
    }
    shapes.push(element("path", {d: path}));
    this.svg.replaceChildren(...shapes);
    const last = finite.at(-1)[1];
    this.svg.setAttribute("aria-label",
      `${this.title}: now ${this.format(last)}, between ${this.format(low)} and ${this.format(high)}`);
    this.#label([ago(this.end - this.begin), `${this.format(low)} to ${this.format(high)}`, "now"]);
    this.#readLast();
  }

  #label(texts) {
    this.axis.replaceChildren(...texts.map((text) => {
      const label = document.createElement("span");
      label.textContent = text;
      return label;
    }));
  }

  #readLast() {
    const last = this.points.findLast(([, value]) => Number.isFinite(value));
    this.readout.textContent = last ? this.format(last[1]) : "";
  }

  #read(event) {
    const box = this.svg.getBoundingClientRect();
    const time = this.begin + ((event.clientX - box.left) / box.width) * (this.end - this.begin);
    let nearest = null;
    for (const [at, value] of this.points) {
      if (!Number.isFinite(value)) continue;
      if (!nearest || Math.abs(at - time) < Math.abs(nearest[0] - time)) nearest = [at, value];
    }
    if (nearest) this.readout.textContent = `${this.format(nearest[1])}, ${ago(this.end - nearest[0])}`;
  }
}

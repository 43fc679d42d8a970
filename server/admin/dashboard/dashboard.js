// Shows the coordinator's status, and updates it every second. Names come from members, so they are added to the page as
// text, never as markup.
import {showAdvice} from "/advice.js";
import {Chart} from "/chart.js";
import {showDurability, stepOf} from "/durability.js";
import {make} from "/elements.js";
import {Events} from "/events.js";
import {showGoals} from "/goals.js";
import {Phases} from "/phases.js";
import {Rates, rates, speeds} from "/rates.js";
import {Sparks} from "/spark.js";

const PERIOD_MS = 1000;
const HOUR_SECONDS = 3600;
// Part of the failure timeout after which a heartbeat is late. Heartbeats come each tenth of it, and a member that sends
// none for six tenths is dropped.
const LATE = 0.3;
const byId = (id) => document.getElementById(id);

const state = {
  series: new Map(),  // points {time, step, loss, bytes, samples} by job number
  rates: new Rates(),  // by "job/rank/incarnation" or "server/number/incarnation"
  events: new Events(),
  charts: null,
  phases: null,
  sparks: new Sparks(),
  advice: null,
  status: null,       // the last one
};

// ---- numbers --------------------------------------------------------------------------------------------------

function short(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit + 1 < units.length) {
    value /= 1000;
    ++unit;
  }
  return `${value < 10 && unit > 0 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

const perSecond = (value) => (Number.isFinite(value) ? `${bytes(value)}/s` : "–");
const seconds = (value) => (value < 10 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`);

function duration(value) {
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}

// ---- elements -------------------------------------------------------------------------------------------------

// A cell is a string, or {text, className}, or an element.
function row(cellName, cells, numeric) {
  const made = make("tr");
  cells.forEach((cell, column) => {
    const content = typeof cell === "string" ? {text: cell} : cell;
    const shown = content instanceof Node ? make("td") : make(cellName, content.text, content.className);
    if (content instanceof Node) shown.append(content);
    if (cellName === "th") shown.scope = "col";
    if (numeric.includes(column)) shown.classList.add("number");
    made.append(shown);
  });
  return made;
}

function table(id, head, numeric, rows) {
  const body = make("tbody");
  body.append(...rows.map((cells) => row("td", cells, numeric)));
  const top = make("thead");
  top.append(row("th", head, numeric));
  byId(id).replaceChildren(top, body);
}

// ---- history --------------------------------------------------------------------------------------------------

// Adds the points that are new. If the coordinator's clock was set back, later points are dropped.
function take(jobs) {
  for (const job of jobs) {
    state.sparks.begin(job.job, job.workers);  // /history has workers, /latest has none
    const known = state.series.get(job.job) ?? [];
    const end = job.points.at(-1)?.time ?? 0;
    const points = known.filter((point) => point.time <= end);
    const last = points.at(-1)?.time ?? 0;
    points.push(...job.points.filter((point) => point.time > last).map((point) => ({...point, loss: point.loss ?? NaN})));
    state.series.set(job.job, points.filter((point) => point.time > end - HOUR_SECONDS));
  }
}

// ---- the page -------------------------------------------------------------------------------------------------

const isOver = (job) => job.phase === "over" || job.phase === "failed";

function choose(jobs) {
  const wanted = location.hash.slice(1);
  return jobs.findLast((job) => `${job.job}` === wanted) ?? jobs.findLast((job) => !isOver(job)) ?? jobs.at(-1);
}

function showJobs(jobs, chosen) {
  byId("jobs").replaceChildren(...jobs.map((job) => {
    const link = make("a", job.name, job.phase);
    link.href = `#${job.job}`;
    link.title = `job ${job.job} is ${job.phase}`;
    if (job === chosen) link.setAttribute("aria-current", "page");
    return link;
  }));
}

// Headers make uncompressed data a little longer than it was.
function compressionOf(ratio) {
  return ratio > 0.98 && ratio < 1.005 ? "none" : `${short(ratio)}×`;
}

function tiles(job, points) {
  const speed = (name) => speeds(points, name).at(-1)?.[1] ?? NaN;
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const ratios = job.members.map((member) => member.compression.ratio).filter((ratio) => ratio > 0);
  const shown = [
    ["Step", stepOf(job).toLocaleString("en")],
    ["Steps a second", short(speed("step"))],
    ["Samples a second", short(speed("samples"))],
    ["Loss", job.loss === null ? "–" : short(job.loss)],
    ["Workers", `${job.members.length} of ${job.expected_workers}`, job.members.length < job.expected_workers ? "few" : ""],
    ["On the wire", perSecond(rates(points.slice(-4), "bytes").at(-1)?.[1] ?? NaN)],
    ["Compression", ratios.length ? compressionOf(mean(ratios)) : "–"],
    ["Learning rate", short(job.learning_rate)],
    ["Mode", job.mode],
    ["Parameters", job.parameters.toLocaleString("en")],
  ];
  if (job.gradient_norm !== null) shown.push(["Gradient norm", short(job.gradient_norm)]);
  if (job.loss_scale !== 1) shown.push(["Loss scale", short(job.loss_scale)]);
  if (job.skipped_steps) shown.push(["Skipped steps", String(job.skipped_steps)]);
  if (job.left_out) shown.push(["After the quorum", String(job.left_out)]);
  byId("tiles").replaceChildren(...shown.map(([name, value, className]) => {
    const tile = make("div");
    tile.append(make("dt", name), make("dd", value, className));
    return tile;
  }));
}

function showCharts(job, points) {
  state.charts ??= {
    loss: new Chart(byId("charts"), "Loss", short),
    steps: new Chart(byId("charts"), "Steps a second", short),
    samples: new Chart(byId("charts"), "Samples a second", short),
    wire: new Chart(byId("charts"), "On the wire, all workers", perSecond),
  };
  const marks = state.events.marks(job.job);
  state.charts.loss.show(points.map((point) => [point.time, point.loss]), marks);
  state.charts.steps.show(speeds(points, "step"), marks);
  state.charts.samples.show(speeds(points, "samples"), marks);
  state.charts.wire.show(rates(points, "bytes"), marks);
}

function showWaits(job) {
  const working = job.members.filter((member) => !member.waiting);
  const waits = working.length > 0 && working.length < job.members.length && working.length <= 8;
  byId("job-waits").textContent = waits
    ? `The others wait for ${working.map((member) => `worker ${member.rank}`).join(", ")}.` : "";
}

function showWorkers(job, time, late) {
  state.sparks.look(job);
  const slow = job.members.map((member) => member.rank).filter((rank) => state.sparks.isSlow(rank));
  byId("slow-ones").textContent = slow.length > 8 ? `${slow.length} are slow` : slow.length ? `slow: ${slow.join(", ")}` : "";
  table("workers", ["Rank", "Now", "Own time of a step", "Step", "Process", "Heard of", "Bytes", "Codec"], [0, 2, 3, 5, 6],
    job.members.map((member) => {
      const age = member.heartbeat_age_seconds;
      const rate = state.rates.measure(`${job.job}/${member.rank}/${member.incarnation}`, time, member.bytes);
      const compression = member.compression;
      const ratio = compression.ratio > 1.005 ? ` ${short(compression.ratio)}×` : "";
      return [
        String(member.rank),
        member.waiting ? "waits" : "computes",
        state.sparks.of(member.rank),
        member.step.toLocaleString("en"), member.name,
        {text: `${seconds(age)} ago`, className: age > late ? "silent" : ""},
        perSecond(rate), `${compression.choice || job.push_codec}${ratio}`,
      ];
    }));
}

function showServers(servers, time, late) {
  table("servers", ["Server", "Process", "Engines", "Lanes", "Memory", "Heard of", "Bytes"], [0, 2, 5, 6],
    servers.map((server) => {
      const [placed, budget] = [server.memory_placed_bytes, server.memory_budget_bytes];
      const memory = make("span", budget ? `${bytes(placed)} of ${bytes(budget)} ` : bytes(placed));
      if (budget) {
        const fill = make("meter");
        Object.assign(fill, {max: budget, value: placed, high: 0.9 * budget});
        fill.setAttribute("aria-label", `memory of server ${server.server}`);
        memory.append(fill);
      }
      const age = server.heartbeat_age_seconds;
      const lost = server.lost_seconds !== undefined;
      return [
        String(server.server), server.name, String(server.shards), lost ? "lost" : server.drains ? "draining" : server.lanes, memory,
        {text: `${seconds(age)} ago`, className: lost || age > late ? "silent" : ""},
        perSecond(state.rates.measure(`server/${server.server}/${server.incarnation}`, time, server.bytes)),
      ];
    }));
}

function show(status) {
  state.status = status;
  const time = performance.now() / 1000;
  byId("about").textContent = `${status.build_version}, up for ${duration(status.uptime_seconds)}`;
  const late = LATE * status.failure_timeout_seconds;
  state.rates.begin();
  const job = choose(status.jobs);
  byId("no-job").hidden = job !== undefined;
  byId("job").hidden = job === undefined;
  showJobs(status.jobs, job);
  if (job) {
    const points = state.series.get(job.job) ?? [];
    document.title = `${job.name}: step ${stepOf(job)} · Syncline`;
    byId("job-name").textContent = job.name;
    byId("job-state").textContent = `${job.phase}, epoch ${job.epoch}${job.reason ? `: ${job.reason}` : ""}`;
    showWaits(job);
    tiles(job, points);
    showCharts(job, points);
    state.phases ??= new Phases(byId("phases"));
    state.phases.show(job, time);
    showGoals(byId("goals"), byId("goals-list"), job);
    showAdvice(byId("advice"), byId("advice-list"), state.advice, job);
    showDurability(byId("durability"), byId("durability-list"), job, duration);
    showWorkers(job, time, late);
  }
  showServers(status.servers, time, late);
  state.events.show(byId("events"), job);
}

// ---- talking to the coordinator --------------------------------------------------------------------------------

// The coordinator sends changes each second, in a stream that begins with everything. So after an interruption or a
// restart the page needs no earlier state. If there is no stream, because too many are open or a proxy holds it back, the
// page asks every second instead, and tries a stream again from time to time.
const SILENT_MS = 5000;         // a stream that is silent for this long is broken
const HEAD_START_MS = 1500;     // time that a new stream has before the page asks
const STREAM_AGAIN_MS = 30000;
const stream = {
  source: null,
  speaks: false,      // it has sent everything, so the page need not ask
  heardAt: 0,
  triedAt: -Infinity,
  wasAway: false,     // the coordinator did not answer the last request
  isWorthATry: true,  // try a new stream at once
};

function says(className, words, how = "") {
  const shown = byId("connection");
  // Set only if it changed: screen readers would read it aloud every second.
  if (shown.textContent !== words) shown.textContent = words;
  shown.className = className;
  shown.title = how;
}

function takeStatus(status, how) {
  for (const some of [status.events, ...status.jobs.map((job) => job.events)]) state.events.take(some);
  show(status);
  says("good", "live", how);
}

function drop() {
  stream.source?.close();
  if (stream.speaks) says("bad", "no answer; trying again");
  Object.assign(stream, {source: null, speaks: false, isWorthATry: stream.speaks, wasAway: stream.speaks || stream.wasAway});
}

function listen() {
  const source = new EventSource("/stream");
  Object.assign(stream, {source, heardAt: performance.now(), triedAt: performance.now(), isWorthATry: false});
  const on = (name, act) => source.addEventListener(name, (event) => {
    stream.heardAt = performance.now();
    act(JSON.parse(event.data));
  });
  on("history", (figures) => {
    state.series.clear();
    take(figures.jobs);
  });
  on("latest", (figures) => take(figures.jobs));
  on("events", (all) => state.events.replace(all.events));
  on("advice", (advice) => { state.advice = advice; });
  on("status", (status) => {
    Object.assign(stream, {speaks: true, wasAway: false});
    takeStatus(status, "sent by the coordinator every second");
    // More events came at once than a status contains.
    if (state.events.lacks) get("/events").then((all) => state.events.replace(all.events), console.warn);
  });
  // Browsers differ in when they connect again, so the page does it itself.
  source.onerror = drop;
}

async function get(path) {
  const reply = await fetch(path, {signal: AbortSignal.timeout(4000)});
  if (reply.status === 401) location.reload();  // the token has changed: shows the login form
  if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
  return reply.json();
}

// The points of the last seconds are enough if the page has those before them. After an interruption, for instance of a
// sleeping tab, or if the coordinator has been restarted, the page asks for the whole history.
const RECENT_MS = 3000;
let loaded = -Infinity;  // time of the last answer, by the page's clock
let uptime = 0;

// Advice covers several seconds, and the coordinator computes a status for it.
const ADVICE_MS = 5000;
let advised = -Infinity;

async function ask() {
  const recent = performance.now() - loaded < RECENT_MS;
  const [figures, status, events] = await Promise.all([
    get(recent ? "/latest" : "/history"), get("/status"), recent && !state.events.lacks ? null : get("/events")]);
  const restarted = status.uptime_seconds < uptime;
  uptime = status.uptime_seconds;
  if (!recent || restarted) state.series.clear();
  take(figures.jobs);
  if (events) state.events.replace(events.events);
  if (performance.now() - advised >= (state.advice ? ADVICE_MS : PERIOD_MS)) {
    advised = performance.now();
    state.advice = await get("/advice");
  }
  // It answers again, and may be another process.
  if (stream.wasAway) Object.assign(stream, {wasAway: false, isWorthATry: true});
  if (stream.speaks) return;  // it has begun in the meantime
  takeStatus(status, "requested every second, because no stream comes through");
  loaded = restarted ? -Infinity : performance.now();
}

async function tick() {
  const now = performance.now();
  if (stream.source && now - stream.heardAt > SILENT_MS) drop();
  if (!stream.source && (stream.isWorthATry || now - stream.triedAt > STREAM_AGAIN_MS)) listen();
  if (!stream.speaks && now - stream.triedAt >= HEAD_START_MS) {
    try {
      await ask();
    } catch (error) {
      loaded = -Infinity;
      stream.wasAway = true;
      says("bad", "no answer; trying again");
      console.warn(error);
    }
  }
}

// A hidden tab needs no data, and leaves its stream to another reader.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    drop();
  } else {
    stream.isWorthATry = true;
    tick();
  }
});
addEventListener("hashchange", () => { if (state.status) show(state.status); });
(async function run() {
  if (!document.hidden) await tick();
  setTimeout(run, PERIOD_MS);
})();

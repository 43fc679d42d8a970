// Shows what protects a job from losses: its checkpoint, its journals or backups, and its recoveries so far.

// Returns how far journals or backups are: all steps below `below` are safe on the servers that still have one. `below`
// is undefined while a server has not reported.
function safeStepsOf(job) {
  const withoutBackup = new Set(job.backups.filter((one) => one.lost).map((one) => one.server));
  const hasBoth = job.durability === "disk+peer"; // one of the two copies is enough
  const lost = hasBoth ? new Set() : new Set(withoutBackup);
  job.records.filter((one) => one.error && (!hasBoth || withoutBackup.has(one.server))).forEach((one) => lost.add(one.server));
  const going = job.records.filter((one) => !lost.has(one.server));
  const isKnown = going.length > 0 && going.length + lost.size >= job.training_servers;
  return {
    lost: lost.size,
    below: isKnown ? Math.min(...going.map((one) => one.durable_step)) : undefined,
    lag: Math.max(0, ...going.map((one) => one.lag_steps)),
  };
}

// Workers and servers report at different times. A step that all servers have recorded has been made, even if no worker
// has reported it yet.
export function stepOf(job) {
  const safe = safeStepsOf(job);
  return safe.lost ? job.step : Math.max(job.step, safe.below ?? 0);
}

// If the servers' report is older than the workers', the line says so.
function safeLineOf(job, safe) {
  const isOlder = safe.below < stepOf(job);
  const where = {disk: "on the disks", peer: "in the backups"}[job.durability] ?? "on the disks and in the backups";
  return `${safe.lost ? "For the other servers, all" : "All"} steps below ${safe.below.toLocaleString("en")} ` +
    `${isOlder ? "were" : "are"} ${where}${safe.lag ? `, ${safe.lag} on the way` : ""}${isOlder ? " at the last heartbeat" : ""}.`;
}

function linesOf(job, duration) {
  const lines = [];
  const say = (words) => lines.push({words});
  const warn = (words) => lines.push({words, className: "silent"});
  const saved = job.checkpoint;
  if (saved.written) say(`Checkpoint ${saved.latest}, ${duration(saved.age_seconds)} old.`);
  if (saved.failed) warn(`${saved.failed} checkpoints failed${saved.error ? `, the last: ${saved.error}` : "."}`);
  const safe = safeStepsOf(job);
  if (safe.below !== undefined) say(safeLineOf(job, safe));
  for (const one of job.records.filter((of) => of.error)) warn(`The journal of server ${one.server} has ended: ${one.error}`);
  for (const one of job.backups) {
    if (one.lost) warn(`Server ${one.server} has no backup: ${one.lost}${one.next ? `, and ${one.next}` : ""}`);
    else say(`Server ${one.server}'s backup is with ${one.holder}.`);
  }
  const past = job.recoveries;
  if (past.count) {
    const times = past.count === 1 ? "Recovered once" : `Recovered ${past.count} times`;
    say(`${times}, no step lost; the last: ${past.last}, back after ${past.last_seconds.toFixed(1)} s, ` +
      `${duration(past.last_age_seconds)} ago.`);
  }
  return lines;
}

export function showDurability(section, list, job, duration) {
  const lines = linesOf(job, duration);
  section.hidden = lines.length === 0;
  list.replaceChildren(...lines.map(({words, className}) => {
    const line = document.createElement("li");
    line.textContent = words;
    if (className) line.className = className;
    return line;
  }));
}

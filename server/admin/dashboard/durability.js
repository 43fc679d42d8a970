// What is left of a job when something dies: its checkpoint, its journals or backups, and what it has got over.

function linesOf(job, duration) {
  const lines = [];
  const say = (words) => lines.push({words});
  const warn = (words) => lines.push({words, className: "silent"});
  const saved = job.checkpoint;
  if (saved.written) say(`Checkpoint ${saved.latest}, ${duration(saved.age_seconds)} old.`);
  if (saved.failed) warn(`${saved.failed} checkpoints failed${saved.error ? `, the last: ${saved.error}` : "."}`);
  const lost = new Set(job.backups.filter((one) => one.lost).map((one) => one.server));
  job.records.filter((one) => one.error).forEach((one) => lost.add(one.server));
  const going = job.records.filter((one) => !lost.has(one.server));
  // Of a server that has not said so yet nobody knows.
  if (going.length && going.length + lost.size >= job.training_servers) {
    const durable = Math.min(...going.map((one) => one.durable_step));
    const lag = Math.max(...going.map((one) => one.lag_steps));
    const where = job.durability === "disk" ? "on the disks" : "in the backups";
    say(`${lost.size ? "Of the other servers all" : "All"} steps below ${durable.toLocaleString("en")} are ${where}${lag ? `, ${lag} on the way` : ""}.`);
  }
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

// Shows what limits a job and what to change, as the coordinator's advisor says (docs/advise.md).

const percent = (part) => `${Math.round(100 * part)} %`;

// `advice` is the reply of /advice, or null before the first one.
export function showAdvice(section, list, advice, job) {
  const found = advice?.jobs?.find((one) => one.job === job.job);
  section.hidden = !found;
  if (section.hidden) return;
  const note = (words) => Object.assign(document.createElement("li"), {className: "note", textContent: words});
  if (found.why_not) return list.replaceChildren(note(`No advice: ${found.why_not}.`));
  const lines = found.advice.map((one) => {
    const line = document.createElement("li");
    const what = document.createElement("strong");
    what.textContent = `${percent(one.share)} of a step: ${one.bound.replace("_", " ")}. `;
    line.append(what, `${one.what}. Change: ${one.change}; it saves ${percent(one.gain)} of a step at most (${one.sure} sure).`);
    return line;
  });
  if (lines.length === 0) lines.push(note("Nothing takes 15 % of a step or more besides computing."));
  const without = found.without_a_step;
  if (without.length > 8) lines.push(note(`${without.length} workers made no recent step, and are left out.`));
  else if (without.length) lines.push(note(`No recent step, and left out: worker ${without.join(", ")}.`));
  list.replaceChildren(...lines);
}

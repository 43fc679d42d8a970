// What bounds a job and what to change, as the coordinator's advisor says it (docs/advise.md).

const percent = (part) => `${Math.round(100 * part)} %`;

// `advice` is the reply of /advice, or null before the first one.
export function showAdvice(section, list, advice, job) {
  const found = advice?.jobs?.find((one) => one.job === job.job);
  section.hidden = !found || found.why_not !== "";
  if (section.hidden) return;
  const lines = found.advice.map((one) => {
    const line = document.createElement("li");
    const what = document.createElement("strong");
    what.textContent = `${percent(one.share)} of a step: ${one.bound.replace("_", " ")}. `;
    line.append(what, `${one.what}. Change: ${one.change}; it saves ${percent(one.gain)} of a step at most (${one.sure} sure).`);
    return line;
  });
  if (lines.length === 0) {
    const line = document.createElement("li");
    line.textContent = "Nothing takes 15 % of a step or more besides computing.";
    lines.push(line);
  }
  list.replaceChildren(...lines);
}

// The metrics of a vertex as charts: chosen from a sorted list that can be searched, subtask by subtask where there are few.

import { path, usePoll } from "../parts/api.js";
import { Chart } from "../parts/chart.js";
import { Pending } from "../parts/elements.js";
import { useLines } from "../parts/history.js";
import { html, useState } from "../parts/html.js";

const AT_FIRST = ["numRecordsInPerSecond", "busyTimeMsPerSecond"];
const MOST_LINES = 8;
const MOST_SHOWN = 60;

function MetricChart({ job, vertex, name, onRemove }) {
  const base = path("jobs", job.jid, "vertices", vertex.id);
  const isEach = vertex.parallelism <= MOST_LINES;
  const indices = Array.from({ length: vertex.parallelism }, (_, index) => index);
  const asked = isEach
    ? `${base}/metrics?get=${indices.map((index) => encodeURIComponent(`${index}.${name}`)).join(",")}`
    : `${base}/subtasks/metrics?get=${encodeURIComponent(name)}&agg=min,max,avg`;
  const { data } = usePoll(asked);
  const lines = useLines(data, (answer) => ({ at: Date.now(), values: isEach ? each(answer) : aggregated(answer) }), asked);
  return html`<div class="metric"><${Chart} title=${name} lines=${lines} note=${isEach ? "by subtask" : `of ${vertex.parallelism} subtasks`} /><button class="plain" title="Remove" aria-label=${`Remove ${name}`} onClick=${onRemove}>✕</button></div>`;
}

const each = (answer) => Object.fromEntries(answer.map((one) => [String(Number(one.id.split(".")[0]) + 1), Number(one.value)]));
const aggregated = (answer) => (answer[0] ? { lowest: answer[0].min, mean: answer[0].avg, highest: answer[0].max } : {});

export function Metrics({ job, vertex }) {
  const { data, error } = usePoll(`${path("jobs", job.jid, "vertices", vertex.id)}/subtasks/metrics`, 15_000);
  const [chosen, setChosen] = useState(AT_FIRST);
  const [wanted, setWanted] = useState("");
  if (!data) return html`<${Pending} error=${error} />`;
  const names = data.map((one) => one.id).sort((one, other) => one.localeCompare(other));
  const found = names.filter((name) => name.toLowerCase().includes(wanted.toLowerCase()) && !chosen.includes(name));
  const charts = chosen.filter((name) => names.includes(name));
  return html`<div class="chooser">
      <input type="search" placeholder=${`Search ${names.length} metrics`} aria-label="Search metrics" value=${wanted} onInput=${(event) => setWanted(event.target.value)} />
      <div class="chips">${found.slice(0, MOST_SHOWN).map((name) => html`<button key=${name} onClick=${() => setChosen([name, ...chosen])}>+ ${name}</button>`)}${found.length > MOST_SHOWN && html`<span class="muted">and ${found.length - MOST_SHOWN} more</span>`}</div>
    </div>
    ${charts.map((name) => html`<${MetricChart} key=${name} job=${job} vertex=${vertex} name=${name} onRemove=${() => setChosen(chosen.filter((one) => one !== name))} />`)}
    ${charts.length === 0 && html`<p class="empty">Choose a metric.</p>`}`;
}

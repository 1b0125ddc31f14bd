// How a job came to its parallelism: what asked for each rescale, why, and how it ended.

import { path, usePoll } from "../parts/api.js";
import { Card, Pending, Stale, Table } from "../parts/elements.js";
import { cut, duration, rate, time } from "../parts/format.js";
import { html } from "../parts/html.js";

const LOOK = { COMPLETED: "good", FAILED: "bad", ADVISED: "off", IN_PROGRESS: "warn" };
const WORDS = { COMPLETED: "done", FAILED: "came to nothing", ADVISED: "only advised", IN_PROGRESS: "under way" };

const MOST_OF_A_NAME = 40;

function Changes({ vertices, names }) {
  const nameOf = (one) => names.get(one.id) ?? one.id;
  return html`${vertices.map((one) => html`<p class="change" key=${one.id}>
    <span class="number">${one.from} → ${one.to}</span> <span class="strong" title=${nameOf(one)}>${cut(nameOf(one), MOST_OF_A_NAME)}</span>
    ${one.metrics.target_data_rate !== undefined && html` <span class="muted small">asked for ${rate(one.metrics.target_data_rate)}</span>`}
  </p>`)}`;
}

const COLUMNS = (names) => [
  { label: "When", cell: (one) => time(one.timestamp) },
  { label: "Asked by", cell: (one) => one.trigger },
  { label: "Parallelism", cell: (one) => html`<${Changes} vertices=${one.vertices} names=${names} />` },
  { label: "Result", cell: (one) => html`<span class=${`pill ${LOOK[one.status] ?? "off"}`}>${WORDS[one.status] ?? one.status}</span>` },
  { label: "Took", right: true, cell: (one) => (one["end-timestamp"] < 0 ? "–" : duration(one["end-timestamp"] - one.timestamp)) },
  { label: "Why", wide: true, cell: (one) => one.failure || one.reason || "–" },
];

export function Rescales({ job }) {
  const { data, error } = usePoll(path("jobs", job.jid, "rescales", "history"));
  if (!data) return html`<${Pending} error=${error} />`;
  const names = new Map(job.vertices.map((vertex) => [vertex.id, vertex.name]));
  const { enabled, status } = data.autoscaler;
  return html`<${Stale} error=${error} />
    <${Card} title="Rescales" flush id="rescales" aside=${html`<span class="muted">autoscaler: ${enabled ? status : "off"}</span>`}>
      <${Table} columns=${COLUMNS(names)} rows=${data.rescales} keyOf=${(one) => one.timestamp} empty="It runs as it was submitted." />
    </${Card}>`;
}

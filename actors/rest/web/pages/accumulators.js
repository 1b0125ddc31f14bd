// What the functions of a job have accumulated.

import { path, usePoll } from "../parts/api.js";
import { Card, Pending, Stale, Table } from "../parts/elements.js";
import { html } from "../parts/html.js";

const COLUMNS = [
  { label: "Name", wide: true, cell: (one) => html`<code>${one.name}</code>` },
  { label: "Kind", cell: (one) => one.type },
  { label: "Value", cell: (one) => (one.value === null ? html`<span class="muted">a kind of the program's own: its client can read it</span>` : html`<code class="value">${one.value}</code>`) },
];

export function Accumulators({ job }) {
  const { data, error } = usePoll(path("jobs", job.jid, "accumulators"));
  if (!data) return html`<${Pending} error=${error} />`;
  return html`<${Stale} error=${error} /><${Card} title="Accumulators of all operators" flush id="accumulators">
    <${Table} columns=${COLUMNS} rows=${data["user-task-accumulators"]} empty="The functions of this job accumulate nothing." />
  </${Card}>`;
}

// What a job was submitted with. Values that are named like secrets are hidden, whatever the server says.

import { path, usePoll } from "../parts/api.js";
import { Card, Pending, State } from "../parts/elements.js";
import { time } from "../parts/format.js";
import { html } from "../parts/html.js";

const SECRET = /passw|passphrase|secret|credential|token|api[_-]?key|access[_-]?key|private[_-]?key|signature/i;

/** The leaves of an object by their full names. */
function leaves(value, prefix = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[prefix, value]];
  const entries = Object.entries(value);
  return entries.flatMap(([name, part]) => leaves(part, prefix ? `${prefix}.${name}` : name));
}

function Facts({ of }) {
  return html`<dl class="facts">${leaves(of).map(([name, value]) => html`
    <dt>${name.replaceAll("_", "-")}</dt><dd><code>${SECRET.test(name) ? "•••••• (hidden)" : value === null || value === "" ? "–" : String(value)}</code></dd>`)}</dl>`;
}

export function Configuration({ job }) {
  const execution = usePoll(path("jobs", job.jid, "config"), 15_000);
  const checkpoints = usePoll(path("jobs", job.jid, "checkpoints", "config"), 15_000);
  const states = Object.entries(job.timestamps).filter(([, at]) => at > 0).sort((one, other) => one[1] - other[1]);
  return html`<div class="columns" id="configuration">
    <${Card} title="Execution">${execution.data ? html`<${Facts} of=${execution.data["execution-config"]} />` : html`<${Pending} error=${execution.error} />`}</${Card}>
    <${Card} title="Checkpoints">${checkpoints.data
      ? html`<${Facts} of=${checkpoints.data} />`
      : checkpoints.error?.status === 404 ? html`<p class="empty">${checkpoints.error.message}</p>` : html`<${Pending} error=${checkpoints.error} />`}</${Card}>
    <${Card} title="States of the job"><dl class="facts">${states.map(([state, at]) => html`<dt><${State} state=${state} /></dt><dd>${time(at, { withMs: true })}</dd>`)}</dl></${Card}>
  </div>`;
}

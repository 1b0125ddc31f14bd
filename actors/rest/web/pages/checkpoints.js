// The checkpoints of a job: how many, how long, how large, why one failed, and each down to its subtasks.

import { path, usePoll } from "../parts/api.js";
import { Card, Copyable, Figure, Pending, Stale, State, Table } from "../parts/elements.js";
import { bytes, duration, percent, time, whole } from "../parts/format.js";
import { html } from "../parts/html.js";
import { go, href } from "../parts/router.js";
import { Checkpoint } from "./checkpoint.js";

const SUMMARY = [
  ["end_to_end_duration", "End to end", duration],
  ["state_size", "State", bytes],
  ["checkpointed_size", "Written", bytes],
  ["persisted_data", "In flight", bytes],
];

const PERCENTILES = [["min", "least"], ["avg", "mean"], ["p50", "p50"], ["p90", "p90"], ["p95", "p95"], ["p99", "p99"], ["p999", "p99.9"], ["max", "most"]];

const kindOf = (one) => (one.is_savepoint ? "savepoint" : one.unaligned_checkpoint ? "unaligned" : "aligned");

const COLUMNS = (job, longest) => [
  { label: "#", cell: (one) => html`<a class="strong" href=${href("job", job.jid, "checkpoints", String(one.id))}>${one.id}</a>` },
  { label: "State", cell: (one) => html`<${State} state=${one.status} />` },
  { label: "Kind", cell: (one) => (one.is_savepoint ? html`<span class="pill info">savepoint</span>` : kindOf(one)) },
  { label: "Triggered", cell: (one) => time(one.trigger_timestamp) },
  { label: "Acknowledged", right: true, cell: (one) => (one.num_subtasks ? `${one.num_acknowledged_subtasks}/${one.num_subtasks}` : "–") },
  { label: "Took", cell: (one) => html`<span class="with-bar"><span class="load"><i class=${one.status === "FAILED" ? "bad" : "info"} style=${{ width: percent(one.end_to_end_duration / longest).replace(" ", "") }}></i></span>${duration(one.end_to_end_duration)}</span>` },
  { label: "State size", right: true, cell: (one) => bytes(one.state_size) },
  { label: "Written", right: true, cell: (one) => bytes(one.checkpointed_size) },
  { label: "Why it failed", wide: true, cell: (one) => (one.failure_message ? html`<span class="bad-text">${one.failure_message}</span>` : null) },
];

function Summary({ summary }) {
  const columns = [
    { label: "Of complete ones", wide: true, cell: ([, label]) => label },
    ...PERCENTILES.map(([key, label]) => ({ label, right: true, cell: ([name, , format]) => html`<span class="number">${format(summary[name][key])}</span>` })),
  ];
  return html`<${Table} columns=${columns} rows=${SUMMARY} keyOf=${([name]) => name} />`;
}

function Latest({ label, one }) {
  if (!one) return null;
  const at = one.trigger_timestamp ?? one.restore_timestamp;
  return html`<dt>${label}</dt><dd>#${one.id}, ${time(at)}${one.end_to_end_duration !== undefined ? html`, ${duration(one.end_to_end_duration)}, ${bytes(one.state_size)}` : ""}
    ${one.failure_message && html`<span class="bad-text">${one.failure_message}</span>`}${one.external_path && html`<br /><${Copyable} text=${one.external_path} />`}</dd>`;
}

export function Checkpoints({ job, route }) {
  const { data, error } = usePoll(path("jobs", job.jid, "checkpoints"));
  if (route[0]) return html`<${Checkpoint} key=${route[0]} job=${job} id=${route[0]} vertexId=${route[1]} />`;
  if (!data) return html`<${Pending} error=${error} />`;
  const { counts, latest, history } = data;
  const longest = Math.max(...history.map((one) => one.end_to_end_duration), 1);
  return html`<${Stale} error=${error} />
    <div class="figures small">
      <${Figure} label="complete" name="completed" value=${whole(counts.completed)} tone="good" /><${Figure} label="under way" name="in_progress" value=${whole(counts.in_progress)} />
      <${Figure} label="failed" name="failed" value=${whole(counts.failed)} tone=${counts.failed ? "bad" : ""} /><${Figure} label="gone on from" name="restored" value=${whole(counts.restored)} />
    </div>
    <${Card} title="History" flush id="history" aside=${html`<span class="muted">the newest ones; a click shows the subtasks</span>`}>
      <${Table} columns=${COLUMNS(job, longest)} rows=${history} keyOf=${(one) => one.id} onRow=${(one) => go("job", job.jid, "checkpoints", String(one.id))} empty="No checkpoint was taken yet." />
    </${Card}>
    ${counts.completed > 0 && html`<${Card} title="Summary" flush id="summary"><${Summary} summary=${data.summary} /></${Card}>`}
    <${Card} title="Latest"><dl class="facts"><${Latest} label="Complete" one=${latest.completed} /><${Latest} label="Savepoint" one=${latest.savepoint} /><${Latest} label="Failed" one=${latest.failed} /><${Latest} label="Gone on from" one=${latest.restored} /></dl>
      ${!latest.completed && !latest.savepoint && !latest.failed && !latest.restored && html`<p class="empty">None yet.</p>`}</${Card}>`;
}

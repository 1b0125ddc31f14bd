// One checkpoint: which operators and subtasks it waited for, how long each of its steps took, and who was the slowest.

import { ask, path, usePoll } from "../parts/api.js";
import { Card, Copyable, Figure, Pending, Stale, State, Table } from "../parts/elements.js";
import { bytes, duration, time, whole } from "../parts/format.js";
import { Gantt } from "../parts/gantt.js";
import { html, useEffect, useMemo, useState } from "../parts/html.js";
import { href } from "../parts/router.js";

const MOST_OPEN = 12;
const LEGEND = [["new", "until its barriers came"], ["warn", "alignment"], ["bad", "snapshot (the task stands still)"], ["info", "files written beside it"]];

/** Subtasks of vertices, asked once each, as they do not change any more. */
function useSubtasks(base, vertices) {
  const [found, setFound] = useState({});
  const wanted = vertices.join(" ");
  useEffect(() => {
    const control = new AbortController();
    for (const vertex of vertices) {
      if (found[vertex]) continue;
      ask(base + path("subtasks", vertex), { signal: control.signal }).then(
        (answer) => setFound((before) => ({ ...before, [vertex]: answer })),
        () => {}, // it is not kept any more: the page says so
      );
    }
    return () => control.abort();
  }, [base, wanted]);
  return found;
}

/** The bars of a subtask, told backwards from its acknowledgement, as its steps are known by their lengths. */
export function partsOf(subtask, triggered) {
  const end = subtask.ack_timestamp;
  const writing = end - subtask.checkpoint.async;
  const standing = writing - subtask.checkpoint.sync;
  const aligning = Math.max(standing - subtask.alignment.duration, triggered);
  const part = (tone, from, to, label) => ({ tone, from, to: Math.max(to, from), label: `${label}: ${duration(Math.max(to - from, 0))}` });
  return [
    part("new", triggered, aligning, "until its barriers came"),
    part("warn", aligning, standing, "alignment"),
    part("bad", standing, writing, "snapshot"),
    part("info", writing, end, "files written"),
  ].filter((one) => one.to > one.from);
}

/** Which step of a subtask took longest, in words. */
function reasonOf(subtask, triggered) {
  const parts = partsOf(subtask, triggered);
  if (parts.length === 0) return "";
  const longest = parts.reduce((one, other) => (other.to - other.from > one.to - one.from ? other : one));
  const words = { new: "waited for barriers to reach it", warn: "waited for barriers of its other inputs", bad: "stood still for its snapshot", info: "wrote files" };
  return `For ${duration(longest.to - longest.from)} of that it ${words[longest.tone]}.`;
}

const SUBTASKS = [
  { label: "#", cell: (one) => one.index + 1 },
  { label: "End to end", right: true, cell: (one) => duration(one.end_to_end_duration) },
  { label: "Alignment", right: true, cell: (one) => duration(one.alignment.duration) },
  { label: "Snapshot", right: true, title: "for so long the task stood still", cell: (one) => duration(one.checkpoint.sync) },
  { label: "Writing", right: true, title: "beside the task", cell: (one) => duration(one.checkpoint.async) },
  { label: "State size", right: true, cell: (one) => bytes(one.state_size) },
  { label: "Written", right: true, cell: (one) => bytes(one.checkpointed_size) },
  { label: "In flight", right: true, cell: (one) => bytes(one.alignment.persisted) },
  { label: "Barriers", cell: (one) => (one.unaligned_checkpoint ? "overtook records" : "aligned") },
];

function Sizes({ rows, nameOf }) {
  const most = Math.max(...rows.map(([, task]) => task.state_size), 1);
  return html`<div class="bars">${rows.map(([vertex, task]) => html`<div key=${vertex}><span title=${nameOf(vertex)}>${nameOf(vertex)}</span><span class="load"><i class="info" style=${{ width: `${(task.state_size / most) * 100}%` }}></i></span><b>${bytes(task.state_size)}</b><small class="muted">${bytes(task.checkpointed_size)} written</small></div>`)}</div>`;
}

export function Checkpoint({ job, id, vertexId }) {
  const base = path("jobs", job.jid, "checkpoints", "details", id);
  const { data, error } = usePoll(base);
  const back = html`<nav class="crumbs"><a href=${href("job", job.jid, "checkpoints")}>Checkpoints</a> / <span>${id}</span></nav>`;
  const bySlowness = useMemo(() => Object.entries(data?.tasks ?? {}).sort(([, one], [, other]) => other.end_to_end_duration - one.end_to_end_duration), [data]);
  const isOver = data !== null && data.status !== "IN_PROGRESS";
  const [all, setAll] = useState(false);
  const shown = isOver ? bySlowness.slice(0, all ? undefined : MOST_OPEN).map(([vertex]) => vertex) : [];
  if (vertexId && isOver && !shown.includes(vertexId)) shown.push(vertexId);
  const found = useSubtasks(base, shown);
  if (!data) return html`${back}<${Pending} error=${error} />`;
  const names = new Map(job.vertices.map((vertex) => [vertex.id, vertex.name]));
  const nameOf = (vertex) => names.get(vertex) ?? vertex;
  const triggered = data.trigger_timestamp;
  const subtasks = Object.entries(found).flatMap(([vertex, answer]) => answer.subtasks.map((subtask) => ({ ...subtask, vertex })));
  const slowest = subtasks.reduce((one, other) => (one === null || other.ack_timestamp > one.ack_timestamp ? other : one), null);
  const last = Math.max(data.latest_ack_timestamp, triggered + data.end_to_end_duration, triggered + 1);
  const rows = shown.filter((vertex) => found[vertex]).flatMap((vertex) => [
    { id: vertex, label: nameOf(vertex), parts: [] },
    ...found[vertex].subtasks.map((subtask) => ({ id: `${vertex} ${subtask.index}`, label: `subtask ${subtask.index + 1}`, indent: true, parts: partsOf(subtask, triggered) })),
  ]);
  const chosen = vertexId && found[vertexId];
  return html`${back}<${Stale} error=${!isOver && error} />
    <div class="headline"><div class="names"><h2>${data.is_savepoint ? "Savepoint" : "Checkpoint"} ${id} <${State} state=${data.status} /></h2>
      <p class="muted">triggered at ${time(triggered, { withMs: true })}${data.external_path && html` <${Copyable} text=${data.external_path} />`}</p></div></div>
    ${data.failure_message && html`<div class="notice bad" role="alert"><b>Why it failed</b><p>${data.failure_message}</p></div>`}
    ${slowest && html`<div class="notice" data-slowest><b>Slowest: subtask ${slowest.index + 1} of ${nameOf(slowest.vertex)}, ${duration(slowest.end_to_end_duration)}</b><p>${reasonOf(slowest, triggered)}</p></div>`}
    <div class="figures small">
      <${Figure} label="end to end" value=${duration(data.end_to_end_duration)} /><${Figure} label="acknowledged" value=${`${whole(data.num_acknowledged_subtasks)}/${whole(data.num_subtasks)}`} />
      <${Figure} label="state" value=${bytes(data.state_size)} /><${Figure} label="written" value=${bytes(data.checkpointed_size)} /><${Figure} label="in flight" value=${bytes(data.persisted_data)} />
    </div>
    <${Card} title="Subtasks over time" id="gantt" aside=${bySlowness.length > shown.length && isOver && html`<button class="plain" onClick=${() => setAll(true)}>show all ${bySlowness.length} operator chains</button>`}>
      ${!isOver ? html`<p class="empty">It is under way; times of subtasks are shown when it has ended.</p>` : rows.length === 0 ? html`<p class="empty">No subtask has acknowledged it.</p>` : html`<${Gantt} rows=${rows} from=${triggered} to=${last} isRelative legend=${LEGEND} />`}
    </${Card}>
    <${Card} title="State by operator chain" id="sizes"><${Sizes} rows=${[...bySlowness].sort(([, one], [, other]) => other.state_size - one.state_size)} nameOf=${nameOf} />${bySlowness.length === 0 && html`<p class="empty">None yet.</p>`}</${Card}>
    <${Card} title="Operator chains" flush><${Table} keyOf=${([vertex]) => vertex} rows=${bySlowness} empty="None has acknowledged it." rowClass=${([vertex]) => (vertex === vertexId ? "chosen" : "")} columns=${[
      { label: "Operator chain", wide: true, cell: ([vertex]) => html`<a class="strong" href=${href("job", job.jid, "checkpoints", id, vertex)}>${nameOf(vertex)}</a>` },
      { label: "Acknowledged", right: true, cell: ([, task]) => `${task.num_acknowledged_subtasks}/${task.num_subtasks}` },
      { label: "End to end", right: true, cell: ([, task]) => duration(task.end_to_end_duration) },
      { label: "State size", right: true, cell: ([, task]) => bytes(task.state_size) },
      { label: "Written", right: true, cell: ([, task]) => bytes(task.checkpointed_size) },
      { label: "In flight", right: true, cell: ([, task]) => bytes(task.persisted_data) },
    ]} /></${Card}>
    ${chosen && html`<${Card} title=${`Subtasks of ${nameOf(vertexId)}`} flush><${Table} columns=${SUBTASKS} rows=${chosen.subtasks} keyOf=${(one) => one.index} /></${Card}>`}`;
}

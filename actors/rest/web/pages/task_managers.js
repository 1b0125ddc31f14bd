// TaskManagers and their slots.

import { answers, path, usePoll } from "../parts/api.js";
import { Card, Figure, Pending, Stale, Table } from "../parts/elements.js";
import { bytes, counted, time, whole } from "../parts/format.js";
import { html, useState } from "../parts/html.js";
import { go, href } from "../parts/router.js";

/** A square for each slot; those that are used are full. */
function Slots({ total, free }) {
  const shown = Math.min(total, 32);
  return html`<span class="slots" title=${`${total - free} of ${total} slots used`}>${Array.from({ length: shown }, (_, index) => html`<i class=${index < total - free ? "used" : ""}></i>`)}${total > shown && "…"} <small>${free} free</small></span>`;
}

const COLUMNS = [
  { label: "TaskManager", wide: true, cell: (one) => html`<a class="strong" href=${href("task-managers", one.id)}>${one.id}</a>` },
  { label: "Machine", cell: (one) => one.host ?? one.node ?? "–" },
  { label: "Slots", cell: (one) => html`<${Slots} total=${one.slotsNumber} free=${one.freeSlots} />` },
  { label: "Works for", cell: (one) => (one.job ? html`<a href=${href("job", one.job)} onClick=${(event) => event.stopPropagation()}>${one.job.slice(0, 8)}…</a>` : "–") },
  { label: "Cores", right: true, cell: (one) => whole(one.hardware.cpuCores) },
  { label: "Memory free", right: true, cell: (one) => (one.hardware.physicalMemory ? `${bytes(one.hardware.freeMemory)} of ${bytes(one.hardware.physicalMemory)}` : "–") },
  { label: "Managed", right: true, cell: (one) => bytes(one.hardware.managedMemory) },
];

export function TaskManagers() {
  const { data, error } = usePoll("/taskmanagers");
  if (!data) return html`<${Pending} error=${error} />`;
  const all = data.taskmanagers;
  return html`<div class="page"><${Stale} error=${error} />
    <${Card} title=${counted(all.length, "TaskManager")} flush id="task-managers">
      <${Table} columns=${COLUMNS} rows=${all} keyOf=${(one) => one.id} onRow=${(one) => go("task-managers", one.id)}
        empty="None. They are started when a job needs slots, and end with it." />
    </${Card}></div>`;
}

/** A link to the page that Ray's own dashboard has of a process; nothing where there is none. */
const RayPage = ({ of: page }) => /^https?:\/\//.test(page ?? "") && html` <a href=${page} target="_blank" rel="noopener noreferrer" title="Ray's own page of this process">on Ray ↗</a>`;

const SLOT_COLUMNS = [
  { label: "Slot's process", wide: true, cell: (slot) => html`<code>${slot.host}</code><${RayPage} of=${slot["ray-page"]} />` },
  { label: "Job", cell: (slot) => html`<a href=${href("job", slot.jobId)}>${slot.jobId}</a>` },
  { label: "Tasks", right: true, cell: (slot) => whole(slot.assignedTasks) },
  { label: "Managed memory", right: true, cell: (slot) => bytes(slot.resource.managedMemory) },
];

/** The log files of a TaskManager; a click shows the end of one. */
function Logs({ id }) {
  const base = path("taskmanagers", id, "logs");
  const { data, error } = usePoll(base, 10_000);
  const [name, setName] = useState("");
  const file = usePoll(name && base + path(name), 5_000);
  if (!data) return html`<${Pending} error=${error} />`;
  const columns = [
    { label: "File", wide: true, cell: (one) => html`<code>${one.name}</code>` },
    { label: "Size", right: true, cell: (one) => bytes(one.size) },
    { label: "Written to last", right: true, cell: (one) => time(one.mtime) },
  ];
  return html`<${Table} columns=${columns} rows=${data.logs} keyOf=${(one) => one.name} onRow=${(one) => setName(one.name === name ? "" : one.name)}
      rowClass=${(one) => (one.name === name ? "chosen" : "")} empty="It keeps no logs." />
    ${name && (file.data === null ? html`<${Pending} error=${file.error} />` : html`<div class="log">${lastLines(file.data).map((line, index) => html`<p key=${index}>${line}</p>`)}</div>`)}`;
}

const MOST_LINES = 500;
const lastLines = (text) => text.split("\n").filter(Boolean).slice(-MOST_LINES);

export function TaskManager({ id }) {
  const { data, error } = usePoll(path("taskmanagers", id));
  if (!data) return html`<${Pending} error=${error} />`;
  const { hardware, disk, network = [] } = data;
  return html`<div class="page"><${Stale} error=${error} />
    <nav class="crumbs"><a href=${href("task-managers")}>TaskManagers</a> / <span>${data.id}</span><${RayPage} of=${data["ray-page"]} /></nav>
    <div class="figures">
      <${Figure} label="slots" value=${whole(data.slotsNumber)} /><${Figure} label="free" value=${whole(data.freeSlots)} />
      <${Figure} label="managed memory" value=${bytes(hardware.managedMemory)} />
      ${hardware.physicalMemory !== undefined && html`<${Figure} label="memory, free at start" value=${bytes(hardware.freeMemory)} /><${Figure} label="cores" value=${whole(hardware.cpuCores)} />`}
      ${disk && html`<${Figure} label="disk, free at start" value=${bytes(disk.free)} hint=${disk.path} />`}
    </div>
    <${Card} title="Slots in use" flush><${Table} columns=${SLOT_COLUMNS} rows=${data.allocatedSlots} keyOf=${(slot) => slot.host} empty="No slot has a task." /></${Card}>
    ${answers("/taskmanagers/{taskmanagerid}/logs") && html`<${Card} title="Logs" flush id="logs"><${Logs} id=${id} /></${Card}>`}
    <${Card} title="Machine"><dl class="facts">
      <dt>Node</dt><dd>${data.node || "–"}</dd><dt>Name</dt><dd>${data.host ?? "–"}</dd>
      ${network.map((one) => html`<dt>${one.name}</dt><dd>${one.addresses.join(", ") || "–"}</dd>`)}
    </dl></${Card}>
  </div>`;
}

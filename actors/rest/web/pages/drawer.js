// One vertex of a job: its load, subtasks, watermarks, backpressure, operators and metrics.

import { answers, path, server, usePoll } from "../parts/api.js";
import { Chart } from "../parts/chart.js";
import { Card, Copyable, Figure, Load, Pending, Stale, State, Table, Tabs } from "../parts/elements.js";
import { counted, duration, lag, percent, rate, watermark, whole } from "../parts/format.js";
import { html } from "../parts/html.js";
import { href } from "../parts/router.js";
import { FlameGraph } from "./flame_graph.js";
import { Metrics } from "./metrics.js";
import { Records } from "./records.js";
import { StateOfKey } from "./state.js";

const base = (job, vertex) => path("jobs", job.jid, "vertices", vertex.id);

function Load_({ vertex, points }) {
  const line = (name, key, colour) => ({ name, colour, points: points.map((point) => [point.at, point[key]]) });
  const { metrics } = vertex;
  return html`<div class="figures small">
      <${Figure} label="records in" name="read-records" value=${whole(metrics?.["read-records"])} />
      <${Figure} label="records out" name="write-records" value=${whole(metrics?.["write-records"])} />
      <${Figure} label="late, dropped" value=${whole(vertex["late-records-dropped"])} tone=${vertex["late-records-dropped"] ? "bad" : ""} />
      <${Figure} label="busy so far" value=${duration(metrics?.["accumulated-busy-time"])} hint="of all subtasks together" />
    </div>
    <${Chart} title="Records per second" lines=${[line("in", "in", 0), line("out", "out", 1)]} format=${rate} />
    <${Chart} title="Share of time" lines=${[line("busy", "busy", 2), line("held up", "held", 3)]} format=${percent} most=${1} note="mean of the subtasks" />`;
}

/** A job's TaskManagers have its id in their names, which tells nobody anything on the job's own page. */
const shortName = (id, job) => id.replace(job.jid, "…");

const subtaskColumns = (job) => [
  { label: "#", cell: (one) => one.subtask + 1 },
  { label: "State", cell: (one) => html`<${State} state=${one.status} />` },
  { label: "Records in", right: true, cell: (one) => whole(one.metrics["read-records"]) },
  { label: "Records out", right: true, cell: (one) => whole(one.metrics["write-records"]) },
  { label: "Attempt", right: true, cell: (one) => one.attempt },
  { label: "For", right: true, cell: (one) => duration(one.duration) },
  { label: "TaskManager", cell: (one) => (one["taskmanager-id"] ? html`<a href=${href("task-managers", one["taskmanager-id"])} title=${`${one["taskmanager-id"]}, ${one.endpoint} on ${one.node || "an unknown node"}`}>${shortName(one["taskmanager-id"], job)}</a>` : "–") },
];

function Subtasks({ job, vertex }) {
  const { data, error } = usePoll(base(job, vertex));
  if (!data) return html`<${Pending} error=${error} />`;
  return html`<${Stale} error=${error} /><${Table} columns=${subtaskColumns(job)} rows=${data.subtasks} keyOf=${(one) => one.subtask} />`;
}

function Watermarks({ job, vertex }) {
  const { data, error } = usePoll(`${base(job, vertex)}/watermarks`);
  if (!data) return html`<${Pending} error=${error} />`;
  const columns = [
    { label: "#", cell: (one) => Number(one.id.split(".")[0]) + 1 },
    { label: "Watermark given on last", wide: true, cell: (one) => html`<span class="number">${watermark(Number(one.value))}</span>` },
    { label: "Lag", right: true, cell: (one) => lag(Number(one.value), job.now) || "–" },
  ];
  return html`<${Stale} error=${error} /><${Table} columns=${columns} rows=${data} keyOf=${(one) => one.id} empty="No subtask has given a watermark yet." />
    <p class="muted small inset"><a href=${href("job", job.jid, "watermarks")}>Event time of all operators</a></p>`;
}

const LEVELS = { ok: ["good", "OK"], low: ["warn", "LOW"], high: ["bad", "HIGH"] };

const PRESSURE_COLUMNS = [
  { label: "#", cell: (one) => one.subtask + 1 },
  { label: "Level", cell: (one) => html`<span class=${`pill ${(LEVELS[one.backpressureLevel] ?? ["new"])[0]}`}>${(LEVELS[one.backpressureLevel] ?? ["", one.backpressureLevel])[1]}</span>` },
  { label: "Load", wide: true, cell: (one) => html`<${Load} busy=${one.busyRatio} backpressured=${one.backpressuredRatio} />` },
  { label: "Samples", right: true, title: "share of the samples in which output had no credit", cell: (one) => (one["num-samples"] ? percent(one.ratio) : "–") },
  { label: "Held up", right: true, title: "measured all the time", cell: (one) => percent(one.backpressuredRatio) },
  { label: "Busy", right: true, cell: (one) => percent(one.busyRatio) },
];

function Backpressure({ job, vertex }) {
  const { data, error } = usePoll(`${base(job, vertex)}/backpressure`);
  if (!data) return html`<${Pending} error=${error} />`;
  const [tone, word] = LEVELS[data.backpressureLevel] ?? ["new", data.backpressureLevel];
  return html`<${Stale} error=${error} /><p class="inset">Backpressure of the worst subtask: <span class=${`pill ${tone}`}>${word}</span> ${data.status !== "ok" && html`<span class="muted">samples are being taken …</span>`}</p>
    <${Table} columns=${PRESSURE_COLUMNS} rows=${data.subtasks ?? []} keyOf=${(one) => one.subtask} empty="No subtask has been measured yet." />`;
}

function Operators({ job, vertex }) {
  const { data, error } = usePoll(base(job, vertex));
  if (!data) return html`<${Pending} error=${error} />`;
  const columns = [
    { label: "Metric", wide: true, cell: ([name]) => html`<code>${name}</code>` },
    { label: "Of all subtasks", right: true, cell: ([, value]) => html`<span class="number">${Number.isInteger(value) ? whole(value) : Number(value).toPrecision(6)}</span>` },
  ];
  return html`<${Stale} error=${error} />${data.operators.map((operator) => html`<${Card} title=${operator.name} flush aside=${html`<${Copyable} text=${operator.uid} />`}>
    <${Table} columns=${columns} rows=${Object.entries(operator.metrics).sort(([one], [other]) => one.localeCompare(other))} keyOf=${([name]) => name} empty="It has reported no metrics." />
  </${Card}>`)}`;
}

const TABS = [
  ["load", "Load", Load_],
  ["subtasks", "Subtasks", Subtasks],
  ["watermarks", "Watermarks", Watermarks],
  ["backpressure", "Backpressure", Backpressure],
  ["metrics", "Metrics", Metrics],
  ["operators", "Operators", Operators],
  ["flame-graph", "Flame graph", FlameGraph, "/jobs/{jobid}/vertices/{vertexid}/flamegraph"],
  ["records", "Records", Records, "/jobs/{jobid}/vertices/{vertexid}/samples"],
  ["state", "State", StateOfKey, "/jobs/{jobid}/operators/{operatorid}/states/{statename}"],
];

/** Tabs with data of the program, which a cluster shows only if it is told to. */
const PRIVATE = new Set(["records", "state"]);

export function Drawer({ job, vertex, points, tab, hints }) {
  const known = TABS.filter(([id, , , needs]) => (needs === undefined || answers(needs)) && (!PRIVATE.has(id) || server.config?.features["record-samples"]));
  const [current, , View] = known.find(([id]) => id === tab) ?? known[0];
  const tabs = known.map(([id, label]) => ({ id, label, href: href("job", job.jid, "graph", vertex.id, id) }));
  return html`<aside class="drawer" aria-label=${vertex.name}>
    <header>
      <div><h2 title=${vertex.name}>${vertex.name}</h2>
        <p class="muted"><${State} state=${vertex.status} /> <span>${counted(vertex.parallelism, "subtask")} of at most ${vertex.maxParallelism ?? "–"}</span></p></div>
      <a class="button plain" aria-label="Close" title="Close" href=${href("job", job.jid, "graph")}>✕</a>
    </header>
    ${hints.map((hint) => html`<div class=${`notice ${hint.kind === "bottleneck" ? "bad" : "warn"}`}><p>${hint.text}</p></div>`)}
    <${Tabs} tabs=${tabs} current=${current} small />
    <div class="content"><${View} job=${job} vertex=${vertex} points=${points} /></div>
  </aside>`;
}

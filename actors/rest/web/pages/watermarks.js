// Where event time is in all operators, on one page: how far each is behind, what holds it back, what came too late.

import { path, usePoll } from "../parts/api.js";
import { Card, Pending, Stale, Table } from "../parts/elements.js";
import { counted, duration, isEnd, isNone, lag, watermark, whole } from "../parts/format.js";
import { holders } from "../parts/hints.js";
import { html, useState } from "../parts/html.js";

const COLUMNS = (now, behind) => [
  { label: "Operator", wide: true, cell: (one) => html`<span class="strong">${one.name}</span> <code class="muted">${one.uid}</code>` },
  { label: "Lowest watermark", cell: (one) => html`<span class=${isNone(one["low-watermark"]) ? "muted" : "number"}>${watermark(one["low-watermark"])}</span>` },
  { label: "Lag", right: true, title: "how far it is behind the clock", cell: (one) => lag(one["low-watermark"], now) || "–" },
  {
    label: "Behind the first",
    right: true,
    title: "how far it is behind the operator whose event time is furthest",
    cell: (one) => (isNone(one["low-watermark"]) || isEnd(one["low-watermark"]) || isNone(behind) || isEnd(behind) ? "–" : duration(behind - one["low-watermark"])),
  },
  { label: "Spread", right: true, title: "from the lowest of its subtasks to the highest", cell: (one) => (isNone(one["low-watermark"]) || isEnd(one["high-watermark"]) ? "–" : duration(one["high-watermark"] - one["low-watermark"])) },
  { label: "Inputs", cell: (one) => html`<${Idle} operator=${one} />` },
  { label: "Late, dropped", right: true, cell: (one) => html`<span class=${one["late-records-dropped"] > 0 ? "bad-text" : ""}>${whole(one["late-records-dropped"])}</span>` },
];

function Idle({ operator }) {
  const parts = operator.subtasks.flatMap((subtask) => subtask.parts);
  const idle = parts.filter((part) => part.idle).length;
  const held = parts.filter((part) => part.held).length;
  if (parts.length === 0) return html`<span class="muted">–</span>`;
  return html`<span>${counted(operator.subtasks.reduce((sum, one) => sum + one["num-parts"], 0), "part")}</span>
    ${idle > 0 && html` <span class="pill off">${idle} idle</span>`}${held > 0 && html` <span class="pill warn" title="not read, as they are ahead of their alignment group">${held} held</span>`}`;
}

function Subtasks({ operator, now }) {
  const columns = [
    { label: "Subtask", cell: (one) => one.subtask + 1 },
    { label: "Watermark", wide: true, cell: (one) => html`<span class="number">${watermark(one.watermark)}</span>` },
    { label: "Lag", right: true, cell: (one) => lag(one.watermark, now) || "–" },
    { label: "Waits for", title: "the end of its first open window, or its first timer", cell: (one) => (isNone(one["waits-for"]) ? "–" : watermark(one["waits-for"])) },
    { label: "Furthest behind", cell: (one) => one.parts.slice(0, 3).map((part) => html`<span class="pill off" title=${watermark(part.watermark)}>${part.name || "all input"}${part.idle ? ", idle" : ""}</span> `) },
  ];
  return html`<${Card} title=${`Subtasks of ${operator.name}`} flush><${Table} columns=${columns} rows=${operator.subtasks} keyOf=${(one) => one.subtask} empty="None has reported yet." /></${Card}>`;
}

export function Watermarks({ job }) {
  const { data, error } = usePoll(path("jobs", job.jid, "watermarks"));
  const [chosen, setChosen] = useState(null);
  if (!data) return html`<${Pending} error=${error} />`;
  const operators = data.vertices.flatMap((vertex) => vertex.operators);
  const known = operators.map((one) => one["high-watermark"]).filter((ms) => !isNone(ms) && !isEnd(ms));
  const behind = known.length ? Math.max(...known) : null;
  const held = holders(data);
  const operator = operators.find((one) => one.uid === chosen);
  return html`<${Stale} error=${error} />
    ${held.map((hint) => html`<div class="notice warn hint" data-hint="watermark"><b>${hint.title}</b><p>${hint.text}</p></div>`)}
    <${Card} title="Event time of all operators" flush id="watermarks" aside=${html`<span class="muted">a click shows the subtasks</span>`}>
      <${Table} columns=${COLUMNS(data.now, behind)} rows=${operators} keyOf=${(one) => one.uid} onRow=${(one) => setChosen(one.uid === chosen ? null : one.uid)}
        rowClass=${(one) => (one.uid === chosen ? "chosen" : "")} empty="The job is not deployed yet." />
    </${Card}>
    ${operator && html`<${Subtasks} operator=${operator} now=${data.now} />`}`;
}

// The newest records that a vertex is sent on one of its inputs: looked at when somebody asks, and forgotten. And the last
// ones that its operators have rejected, which they keep themselves.

import { ask, path } from "../parts/api.js";
import { Card, Table } from "../parts/elements.js";
import { html, useState } from "../parts/html.js";

const eventTime = (one) => (one.timestamp === undefined ? "–" : html`<span class="number">${new Date(one.timestamp).toISOString()}</span>`);

const COLUMNS = [
  { label: "#", cell: (one) => one.subtask + 1 },
  { label: "Event time", cell: eventTime },
  { label: "Change", cell: (one) => one.kind ?? "–" },
  { label: "Record", wide: true, cell: (one) => html`<code class="record">${one.text}</code>` },
];

const KINDS = { late: "came late", bad: "not decoded" };

// Few columns, as the drawer is narrow and a record is long.
const REJECTED_COLUMNS = [
  { label: "Operator", cell: (one) => html`${one.name} #${one.subtask + 1}<br /><span class="muted small">${KINDS[one.why] ?? one.why}${one.timestamp === undefined ? "" : html`, ${eventTime(one)}`}</span>` },
  { label: "Record", wide: true, cell: (one) => html`<code class="record">${one.kind === undefined ? "" : `${one.kind} `}${one.text}</code>` },
];

const rowsOf = (samples) => samples.flatMap((one) => one.records.map((record, index) => ({ ...record, subtask: one.subtask, name: one.name, why: one.kind, index })));

export function Records({ job, vertex }) {
  const inputs = job.plan.nodes.find((node) => node.id === vertex.id)?.inputs ?? [];
  const [edge, setEdge] = useState(inputs[0]?.edge);
  const [mask, setMask] = useState("");
  const [state, setState] = useState({});
  const nameOf = (input) => job.vertices.find((one) => one.id === input.id)?.name ?? input.id;
  const show = async (what, more) => {
    setState({ isLooking: what });
    const names = mask.split(",").map((name) => name.trim()).filter(Boolean);
    const query = new URLSearchParams({ ...more, ...(names.length ? { mask: names.join(",") } : {}) });
    try {
      setState({ [what]: await ask(`${path("jobs", job.jid, "vertices", vertex.id, what)}?${query}`) });
    } catch (error) {
      setState({ message: error.message });
    }
  };
  const { samples, rejected } = state;
  const found = samples ?? rejected;
  const rows = rowsOf(samples?.subtasks ?? rejected?.rejected ?? []);
  const schema = samples?.subtasks.find((one) => one.schema)?.schema;
  return html`<div class="inset records">
      ${inputs.length > 0 && html`<label>Records from<select value=${edge} onChange=${(event) => setEdge(Number(event.target.value))}>
        ${inputs.map((input) => html`<option value=${input.edge}>${nameOf(input)} (${input.ship_strategy.toLowerCase()})</option>`)}
      </select></label>`}
      <label>Hide fields<input value=${mask} spellcheck="false" placeholder="names, or * for all values" onInput=${(event) => setMask(event.target.value)} /></label>
      ${inputs.length > 0 && html`<button class="primary" data-action="look" disabled=${state.isLooking} onClick=${() => show("samples", { edge })}>${state.isLooking === "samples" ? "Looking …" : "Look for two seconds"}</button>`}
      <button data-action="rejected" disabled=${state.isLooking} onClick=${() => show("rejected", {})}>Last late and bad ones</button>
      ${inputs.length === 0 && html`<p class="muted small">A source is sent no records: look at what reads it.</p>`}
      ${state.message && html`<div class="notice bad" role="alert">${state.message}</div>`}
      ${found?.["masked-fields"].length > 0 && html`<p class="muted small">Hidden: ${found["masked-fields"].join(", ")}</p>`}
      ${schema && html`<p class="muted small">Columns: ${schema}</p>`}
    </div>
    ${samples && html`<${Card} title="Newest records" flush><${Table} columns=${COLUMNS} rows=${rows} keyOf=${(one) => `${one.subtask}/${one.index}`} empty="Nothing has come." /></${Card}>`}
    ${rejected && html`<${Card} title="Last late and bad records" flush><${Table} columns=${REJECTED_COLUMNS} rows=${rows} keyOf=${(one) => `${one.name}/${one.why}/${one.subtask}/${one.index}`} empty="None has come late, and all could be decoded, since these subtasks were started." /></${Card}>`}`;
}

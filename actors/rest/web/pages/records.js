// The newest records that a vertex is sent on one of its inputs: looked at when somebody asks, and forgotten.

import { ask, path } from "../parts/api.js";
import { Card, Table } from "../parts/elements.js";
import { html, useState } from "../parts/html.js";

const COLUMNS = [
  { label: "#", cell: (one) => one.subtask + 1 },
  { label: "Event time", cell: (one) => (one.timestamp === undefined ? "–" : html`<span class="number">${new Date(one.timestamp).toISOString()}</span>`) },
  { label: "Change", cell: (one) => one.kind ?? "–" },
  { label: "Record", wide: true, cell: (one) => html`<code class="record">${one.text}</code>` },
];

export function Records({ job, vertex }) {
  const inputs = job.plan.nodes.find((node) => node.id === vertex.id)?.inputs ?? [];
  const [edge, setEdge] = useState(inputs[0]?.edge);
  const [mask, setMask] = useState("");
  const [state, setState] = useState({});
  if (inputs.length === 0) return html`<p class="empty">A source is sent no records: look at what reads it.</p>`;
  const nameOf = (input) => job.vertices.find((one) => one.id === input.id)?.name ?? input.id;
  const look = async () => {
    setState({ isLooking: true });
    const names = mask.split(",").map((name) => name.trim()).filter(Boolean);
    const query = new URLSearchParams({ edge, ...(names.length ? { mask: names.join(",") } : {}) });
    try {
      setState({ found: await ask(`${path("jobs", job.jid, "vertices", vertex.id, "samples")}?${query}`) });
    } catch (error) {
      setState({ message: error.message });
    }
  };
  const { found } = state;
  const rows = found?.subtasks.flatMap((one) => one.records.map((record, index) => ({ ...record, subtask: one.subtask, index }))) ?? [];
  const schema = found?.subtasks.find((one) => one.schema)?.schema;
  return html`<div class="inset records">
      <label>Records from<select value=${edge} onChange=${(event) => setEdge(Number(event.target.value))}>
        ${inputs.map((input) => html`<option value=${input.edge}>${nameOf(input)} (${input.ship_strategy.toLowerCase()})</option>`)}
      </select></label>
      <label>Hide fields<input value=${mask} spellcheck="false" placeholder="names, or * for all values" onInput=${(event) => setMask(event.target.value)} /></label>
      <button class="primary" data-action="look" disabled=${state.isLooking} onClick=${look}>${state.isLooking ? "Looking …" : "Look for two seconds"}</button>
      ${state.message && html`<div class="notice bad" role="alert">${state.message}</div>`}
      ${found?.["masked-fields"].length > 0 && html`<p class="muted small">Hidden: ${found["masked-fields"].join(", ")}</p>`}
      ${schema && html`<p class="muted small">Columns: ${schema}</p>`}
    </div>
    ${found && html`<${Card} title="Newest records" flush><${Table} columns=${COLUMNS} rows=${rows} keyOf=${(one) => `${one.subtask}/${one.index}`} empty="Nothing has come." /></${Card}>`}`;
}

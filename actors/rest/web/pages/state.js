// What a queryable state of a vertex holds for a key: as it is now, or as in the newest checkpoint.

import { ask, path } from "../parts/api.js";
import { Card, Pending, Table } from "../parts/elements.js";
import { html, useEffect, useState } from "../parts/html.js";

const utc = (ms) => html`<span class="number">${ms === null ? "–" : new Date(ms).toISOString()}</span>`;

const VALUE = { label: "Value", wide: true, cell: (one) => html`<code class="record">${one.value}${one["is-cut"] ? " …" : ""}</code>` };

const WINDOW = [
  { label: "Window from", cell: (one) => utc(one["window-start"]) },
  { label: "to", cell: (one) => utc(one["window-end"]) },
];

const whereOf = (job, operator) => path("jobs", job.jid, "operators", operator, "states");

/** The states of all operators of a vertex that may be asked for. */
async function statesOf(job, vertex, signal) {
  const { operators } = await ask(path("jobs", job.jid, "vertices", vertex.id), { signal });
  const answers = await Promise.all(operators.map(({ uid }) => ask(whereOf(job, uid), { signal })));
  return answers.flatMap((answer, index) => answer.states.map((state) => ({ ...state, operator: operators[index] })));
}

/** A text's fields that are to be hidden, as the server wants them. */
const maskOf = (text) => text.split(",").map((name) => name.trim()).filter(Boolean).join(",");

export function StateOfKey({ job, vertex }) {
  const [known, setKnown] = useState(null);
  const [problem, setProblem] = useState(null);
  const [chosen, setChosen] = useState(0);
  const [key, setKey] = useState("");
  const [mask, setMask] = useState("");
  const [consistency, setConsistency] = useState("live");
  const [answer, setAnswer] = useState({});
  useEffect(() => {
    const control = new AbortController();
    statesOf(job, vertex, control.signal).then(setKnown, (error) => control.signal.aborted || setProblem(error));
    return () => control.abort();
  }, [job.jid, vertex.id]);
  if (!known) return html`<${Pending} error=${problem} />`;
  if (known.length === 0) return html`<p class="empty">No state of this chain may be asked for. A program allows that by its descriptor: set_queryable.</p>`;
  const state = known[chosen];
  const look = async () => {
    setAnswer({ isLooking: true });
    const query = new URLSearchParams({ key, consistency, ...(maskOf(mask) ? { mask: maskOf(mask) } : {}) });
    try {
      const found = await ask(`${whereOf(job, state.operator.uid)}${path(state.state)}?${query}`);
      setAnswer({ found });
    } catch (error) {
      setAnswer({ message: error.message });
    }
  };
  const onEnter = (event) => event.key === "Enter" && look();
  const { found } = answer;
  return html`<div class="inset records">
      <label>State<select data-field="state" value=${chosen} onChange=${(event) => { setChosen(Number(event.target.value)); setAnswer({}); }}>
        ${known.map((one, index) => html`<option value=${index}>${one.state} of ${one.operator.name} (${one.kind}${one.windowed ? ", of windows" : ""})</option>`)}
      </select></label>
      <label>Key<input data-field="key" value=${key} spellcheck="false" placeholder=${state["key-example"] ? `as ${state["key-example"]}` : "in JSON"} onInput=${(event) => setKey(event.target.value)} onKeyDown=${onEnter} /></label>
      <p class="muted small">${state["key-type"] ? `Keys are of type ${state["key-type"]}.` : "No key is known yet."} ${state["value-type"] ? `Values are of type ${state["value-type"]}.` : ""}</p>
      <div class="pair"><label>When<select data-field="consistency" value=${consistency} onChange=${(event) => setConsistency(event.target.value)}>
        <option value="live">now (not committed)</option><option value="checkpoint">in the newest checkpoint</option>
      </select></label>
      <label>Hide fields<input value=${mask} spellcheck="false" placeholder="names, or * for all values" onInput=${(event) => setMask(event.target.value)} onKeyDown=${onEnter} /></label></div>
      <button class="primary" data-action="ask-state" disabled=${answer.isLooking} onClick=${look}>${answer.isLooking ? "Looking …" : "Look"}</button>
      ${answer.message && html`<div class="notice bad" role="alert">${answer.message}</div>`}
      ${found?.["masked-fields"].length > 0 && html`<p class="muted small">Hidden: ${found["masked-fields"].join(", ")}</p>`}
    </div>
    ${found && html`<${Card} title=${`${found.state} of ${found.key}, ${found.consistency === "live" ? "now" : "in the newest checkpoint"}`} flush>
      <${Table} columns=${found.windowed ? [...WINDOW, VALUE] : [VALUE]} rows=${found.values} empty="It holds nothing for this key." />
      ${found["left-out"] > 0 && html`<p class="muted small inset">${found["left-out"]} more windows are left out.</p>`}
    </${Card}>`}`;
}

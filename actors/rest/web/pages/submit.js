// Programs: uploaded, run with arguments, deleted. A program's main() runs beside the head, and submits its jobs.

import { ask, path, refresh, server, usePoll } from "../parts/api.js";
import { Card, Pending, Stale, Table } from "../parts/elements.js";
import { time } from "../parts/format.js";
import { html, useRef, useState } from "../parts/html.js";
import { Operation } from "./actions.js";

const size = (bytes) => (bytes < 1024 ? `${bytes} B` : bytes < 1048576 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 1048576).toFixed(1)} MiB`);

function Upload() {
  const file = useRef(null);
  const [state, setState] = useState({});
  const send = async () => {
    const [chosen] = file.current.files;
    if (!chosen) return setState({ message: "Choose a .py file, or a .zip of a project." });
    setState({ isSending: true });
    const form = new FormData();
    form.append("jarfile", chosen);
    try {
      await ask("/jars/upload", { method: "POST", form });
      file.current.value = "";
      setState({});
    } catch (error) {
      setState({ message: error.message });
    }
    return refresh();
  };
  return html`<div class="inset records">
    <label>Program<input type="file" accept=".py,.zip" ref=${file} /></label>
    <p class="muted small">A Python file, or a zip of a project with its main.py. It runs with the rights of this cluster: upload what you trust.</p>
    <button class="primary" data-action="upload" disabled=${state.isSending} onClick=${send}>${state.isSending ? "Sending …" : "Upload"}</button>
    ${state.message && html`<div class="notice bad" role="alert">${state.message}</div>`}
  </div>`;
}

/** Arguments, a line each. */
const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

function Run({ program, onClose }) {
  const [parameters, setParameters] = useState("");
  const [parallelism, setParallelism] = useState("");
  const [entry, setEntry] = useState("");
  const [savepoint, setSavepoint] = useState("");
  const [allow, setAllow] = useState(false);
  const body = {
    programArgsList: linesOf(parameters),
    ...(parallelism.trim() ? { parallelism: Number(parallelism) } : {}),
    ...(entry.trim() ? { entryClass: entry.trim() } : {}),
    ...(savepoint.trim() ? { savepointPath: savepoint.trim(), allowNonRestoredState: allow } : {}),
  };
  const where = path("jars", program.id);
  return html`<${Operation} title=${`Run ${program.name}`} onClose=${onClose} label="Run it" doing="Its main() runs, and submits its jobs …" done="The program has submitted its jobs."
    begin=${() => ask(`${where}/run`, { method: "POST", body })} follow=${(id) => `${where}/runs${path(id)}`}>
    ${program.name.endsWith(".zip") && html`<label>File that is run<input data-field="entry" value=${entry} spellcheck="false" placeholder="main.py, or the only one" onInput=${(event) => setEntry(event.target.value)} /></label>`}
    <label>Arguments, a line each<textarea data-field="arguments" rows="3" spellcheck="false" value=${parameters} onInput=${(event) => setParameters(event.target.value)}></textarea></label>
    <label>Parallelism<input data-field="parallelism" type="number" min="1" value=${parallelism} placeholder="the program's own" onInput=${(event) => setParallelism(event.target.value)} /></label>
    <label>Savepoint to start from<input data-field="savepoint" value=${savepoint} spellcheck="false" placeholder="none: begin anew" onInput=${(event) => setSavepoint(event.target.value)} /></label>
    ${savepoint.trim() && html`<label class="check"><input type="checkbox" checked=${allow} onChange=${(event) => setAllow(event.target.checked)} /> State that has no place in the program may be lost</label>`}
  </${Operation}>`;
}

function Delete({ program, onClose }) {
  return html`<${Operation} title="Delete the program" onClose=${onClose} tone="danger" label="Delete it" doing="Deleting …" done="The program is deleted."
    begin=${() => ask(path("jars", program.id), { method: "DELETE" })}>
    <p><b>${program.name}</b> is deleted. Jobs that it has submitted go on.</p>
  </${Operation}>`;
}

export function Submit() {
  const { data, error } = usePoll("/jars");
  const [open, setOpen] = useState(null);
  const columns = [
    { label: "Program", wide: true, cell: (one) => one.name },
    { label: "Uploaded", cell: (one) => time(one.uploaded) },
    { label: "Size", right: true, cell: (one) => size(one.size) },
    { label: "", cell: (one) => html`<span class="actions"><button data-action="run" onClick=${() => setOpen([Run, one])}>Run</button> <button class="danger" data-action="delete" onClick=${() => setOpen([Delete, one])}>Delete</button></span>` },
  ];
  const [Window, program] = open ?? [];
  return html`<div class="page">
    <h1>Submit a program</h1>
    <${Card} title=${`To cluster ${server.config.cluster}`}><${Upload} /></${Card}>
    <${Stale} error=${data && error} />
    ${data ? html`<${Card} title="Programs" flush><div id="programs"><${Table} columns=${columns} rows=${data.files} keyOf=${(one) => one.id} empty="No program has been uploaded." /></div></${Card}>` : html`<${Pending} error=${error} />`}
    ${Window && html`<${Window} program=${program} onClose=${() => setOpen(null)} />`}
  </div>`;
}

// What changes a job: checkpoint, savepoint, stop, rescale, cancel. Each is confirmed, and followed to its end.

import { ask, mayChange, path, refresh } from "../parts/api.js";
import { Copyable, Dialog } from "../parts/elements.js";
import { html, useEffect, useRef, useState } from "../parts/html.js";
import { href } from "../parts/router.js";

const POLL_MS = 700;
const ENDED = new Set(["FINISHED", "CANCELED", "FAILED", "SUSPENDED"]);

/** Begins something, and asks how it stands until it is done. */
function useOperation() {
  const [state, setState] = useState({ phase: "asked" });
  const isGone = useRef(false);
  useEffect(() => () => (isGone.current = true), []);
  const set = (next) => !isGone.current && setState(next);
  const run = async (begin, follow) => {
    set({ phase: "begun" });
    try {
      const begun = await begin();
      if (!follow) return set({ phase: "done", operation: {} });
      for (;;) {
        const now = await ask(follow(begun["request-id"]));
        if (now.status.id === "COMPLETED") {
          const failure = now.operation?.["failure-cause"] ?? now.operation?.failureCause;
          if (failure) set({ phase: "failed", message: failure["stack-trace"] });
          else set({ phase: "done", operation: now.operation ?? {} });
          return refresh();
        }
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
        if (isGone.current) return undefined;
      }
    } catch (error) {
      set({ phase: "failed", message: error.message });
    } finally {
      refresh();
    }
    return undefined;
  };
  return [state, run];
}

function Outcome({ state, doing, done }) {
  if (state.phase === "begun") return html`<div class="pending" role="status"><i class="spinner"></i>${doing}</div>`;
  if (state.phase === "failed") return html`<div class="notice bad" role="alert"><b>It has failed</b><p>${state.message}</p></div>`;
  if (state.phase !== "done") return null;
  return html`<div class="notice good" role="status"><b>${done}</b>${state.operation.jobid && html`<p><a href=${href("job", state.operation.jobid)}>Its job</a></p>`}${state.operation.location && html`<p><${Copyable} text=${state.operation.location} /></p>`}</div>`;
}

/** A window that asks, begins, and shows what became of it. */
export function Operation({ title, onClose, children, label, doing, done, begin, follow, tone = "primary", isReady = true }) {
  const [state, run] = useOperation();
  const isOver = state.phase === "done" || state.phase === "begun";
  return html`<${Dialog} title=${title} onClose=${onClose}>
    ${!isOver && children}
    <${Outcome} state=${state} doing=${doing} done=${done} />
    <div class="buttons">
      <button onClick=${(event) => event.target.closest("dialog").close()}>${isOver ? "Close" : "Back"}</button>
      ${!isOver && html`<button class=${tone} disabled=${!isReady} onClick=${() => run(begin, follow)}>${label}</button>`}
    </div>
  </${Dialog}>`;
}

function Directory({ value, onInput }) {
  return html`<label>Directory<input value=${value} spellcheck="false" placeholder="the job's own default" onInput=${(event) => onInput(event.target.value)} /></label>
    <p class="muted small">An absolute path or a URI that all machines of the cluster see.</p>`;
}

function Savepoint({ job, onClose }) {
  const [directory, setDirectory] = useState("");
  const where = path("jobs", job.jid, "savepoints");
  const body = directory.trim() ? { "target-directory": directory.trim() } : {};
  return html`<${Operation} title="Take a savepoint" onClose=${onClose} label="Take it" doing="Taking the savepoint …" done="The savepoint is complete."
    begin=${() => ask(where, { method: "POST", body })} follow=${(id) => where + path(id)}>
    <p>A copy of the state of <b>${job.name}</b>, which is yours. The job runs on.</p>
    <${Directory} value=${directory} onInput=${setDirectory} />
  </${Operation}>`;
}

function Checkpoint({ job, onClose }) {
  const [full, setFull] = useState(false);
  const where = path("jobs", job.jid, "checkpoints");
  const body = { checkpointType: full ? "FULL" : "CONFIGURED" };
  return html`<${Operation} title="Take a checkpoint" onClose=${onClose} label="Take it" doing="Taking the checkpoint …" done="The checkpoint is complete."
    begin=${() => ask(where, { method: "POST", body })} follow=${(id) => where + path(id)}>
    <p><b>${job.name}</b> takes a checkpoint now, beside those at intervals. It is the job's own, and goes when newer ones are there.</p>
    <label class="check"><input type="checkbox" checked=${full} onChange=${(event) => setFull(event.target.checked)} /> With all state, naming no files of earlier checkpoints (full)</label>
  </${Operation}>`;
}

function Stop({ job, onClose }) {
  const [directory, setDirectory] = useState("");
  const [drain, setDrain] = useState(false);
  const body = { drain, ...(directory.trim() ? { targetDirectory: directory.trim() } : {}) };
  return html`<${Operation} title="Stop with a savepoint" onClose=${onClose} label="Stop the job" doing="Stopping: the last savepoint is taken …" done="The job has ended; it can go on from here:"
    begin=${() => ask(path("jobs", job.jid, "stop"), { method: "POST", body })} follow=${(id) => path("jobs", job.jid, "savepoints", id)}>
    <p><b>${job.name}</b> ends in order, and can go on from its savepoint later.</p>
    <${Directory} value=${directory} onInput=${setDirectory} />
    <label class="check"><input type="checkbox" checked=${drain} onChange=${(event) => setDrain(event.target.checked)} /> Fire windows and timers first, as if all input had ended (drain)</label>
  </${Operation}>`;
}

function Rescale({ job, onClose }) {
  const [parallelism, setParallelism] = useState("");
  const [operator, setOperator] = useState("");
  const number = /^[0-9]{1,6}$/.test(parallelism) ? Number(parallelism) : 0;
  const where = path("jobs", job.jid, "rescaling");
  const begin = () => (operator
    ? ask(where, { method: "PATCH", body: { operators: { [operator]: number } } })
    : ask(`${where}?parallelism=${number}`, { method: "PATCH" }));
  return html`<${Operation} title="Rescale" onClose=${onClose} label="Rescale" doing="Rescaling: a checkpoint is taken, and the job goes on from it …" done="The job runs at its new parallelism." isReady=${number > 0}
    begin=${begin} follow=${(id) => where + path(id)}>
    <p><b>${job.name}</b> stops at a fresh checkpoint and runs on with other subtasks. Nothing is lost or doubled.</p>
    <label>Which operators<select value=${operator} onChange=${(event) => setOperator(event.target.value)}>
      <option value="">all that can be parallel</option>
      ${job.vertices.map((vertex) => html`<option value=${vertex.id}>${vertex.name} (now ${vertex.parallelism})</option>`)}
    </select></label>
    <label>Parallelism<input type="number" min="1" value=${parallelism} onInput=${(event) => setParallelism(event.target.value)} /></label>
  </${Operation}>`;
}

const isDataSet = (job) => job["job-type"] === "DATASET";

function Cancel({ job, onClose }) {
  return html`<${Operation} title="Cancel the job" onClose=${onClose} tone="danger" label="Cancel the job" doing="Cancelling …" done="The job is being cancelled."
    begin=${() => ask(`${path("jobs", job.jid)}?mode=cancel`, { method: "PATCH" })}>
    <p><b>${job.name}</b> ${isDataSet(job) ? "is run by a program, which is told to end it. It writes nothing; what it has computed is lost." : "ends at once, without a last savepoint. What it has done since its last checkpoint has to be done again."}</p>
  </${Operation}>`;
}

const ACTIONS = [
  ["checkpoint", "Checkpoint", Checkpoint, ""],
  ["savepoint", "Savepoint", Savepoint, ""],
  ["rescale", "Rescale", Rescale, ""],
  ["stop", "Stop", Stop, ""],
  ["cancel", "Cancel", Cancel, "danger"],
];

/** Buttons for what the token allows and the job can do now. */
export function Actions({ job }) {
  const [open, setOpen] = useState(null);
  const close = () => setOpen(null);
  const isOver = ENDED.has(job.state);
  const Window = ACTIONS.find(([name]) => name === open)?.[2];
  if (!mayChange()) return null;
  return html`<div class="actions">
    ${!isOver && ACTIONS.filter(([name]) => name === "cancel" || !isDataSet(job)).map(([name, label, , tone]) => html`<button class=${tone} data-action=${name} onClick=${() => setOpen(name)}>${label}</button>`)}
    ${Window && html`<${Window} job=${job} onClose=${close} />`}
  </div>`;
}

// When each vertex and subtask came into its states: slow starts and stragglers are long bars of another colour.

import { path, usePoll } from "../parts/api.js";
import { Card, Pending } from "../parts/elements.js";
import { duration, time } from "../parts/format.js";
import { Gantt } from "../parts/gantt.js";
import { html, useState } from "../parts/html.js";

const TONES = { CREATED: "new", SCHEDULED: "new", DEPLOYING: "warn", INITIALIZING: "info", RUNNING: "good", CANCELING: "bad" };
const LEGEND = [["new", "scheduled"], ["warn", "deploying"], ["info", "initializing"], ["good", "running"], ["bad", "ending"]];
const STAGE_LEGEND = [["good", "running or done"], ["bad", "failed"]];
const OVER = new Set(["FINISHED", "CANCELED", "FAILED"]);

/** The bars of a subtask: each state lasts until the next one. */
function partsOf(subtask, now) {
  const entered = Object.entries(subtask.timestamps).filter(([, at]) => at > 0).sort((one, other) => one[1] - other[1]);
  return entered.flatMap(([state, at], index) => {
    if (OVER.has(state)) return [];
    const to = entered[index + 1]?.[1] ?? now;
    return [{ from: at, to, tone: TONES[state] ?? "new", label: `${state.toLowerCase()} for ${duration(to - at)}, from ${time(at, { withMs: true })}` }];
  });
}

/** The bar of a vertex as a whole: from its first deployment to its end. */
function wholeOf(vertex, now) {
  if (!(vertex["start-time"] > 0)) return [];
  const to = vertex["end-time"] > 0 ? vertex["end-time"] : now;
  return [{ from: vertex["start-time"], to, tone: vertex.status === "FAILED" ? "bad" : "good", label: `${vertex.status.toLowerCase()}, ${duration(to - vertex["start-time"])}` }];
}

function useSubtasks(job, vertexId) {
  return usePoll(vertexId ? path("jobs", job.jid, "vertices", vertexId, "subtasktimes") : "");
}

export function Timeline({ job }) {
  // Of stages single tasks are not known.
  const isDataSet = job["job-type"] === "DATASET";
  const [open, setOpen] = useState(isDataSet ? null : job.vertices[0]?.id ?? null);
  const subtasks = useSubtasks(job, open);
  const now = job["end-time"] > 0 ? job["end-time"] : job.now;
  const rows = job.vertices.flatMap((vertex) => {
    const isOpen = vertex.id === open;
    const row = { id: vertex.id, label: vertex.name, isOpen, onClick: isDataSet ? undefined : () => setOpen(isOpen ? null : vertex.id), parts: wholeOf(vertex, now) };
    const inner = isOpen && subtasks.data ? subtasks.data.subtasks : [];
    return [row, ...inner.map((subtask) => ({ id: `${vertex.id} ${subtask.subtask}`, label: `subtask ${subtask.subtask + 1}`, title: subtask.endpoint, indent: true, parts: partsOf(subtask, now) }))];
  });
  if (rows.length === 0) return html`<${Card} title="Timeline"><p class="empty">Nothing was deployed yet.</p></${Card}>`;
  const marks = ["RESTARTING", "RUNNING"].map((state) => ({ at: job.timestamps[state], label: `${state.toLowerCase()} since ${time(job.timestamps[state])}` })).filter((mark) => mark.at > 0);
  return html`<${Card} title="Timeline" id="timeline" aside=${html`<span class="muted">${isDataSet ? "of the stages" : "of the present attempts; a click opens the subtasks"}</span>`}>
    ${open && !subtasks.data && html`<${Pending} error=${subtasks.error} />`}
    <${Gantt} rows=${rows} from=${job["start-time"]} to=${now} legend=${isDataSet ? STAGE_LEGEND : LEGEND} marks=${marks} />
  </${Card}>`;
}

// One job: its name and state, what can be done with it, and its views.

import { answers, path, usePoll } from "../parts/api.js";
import { Copyable, Pending, Stale, State, Tabs } from "../parts/elements.js";
import { counted, duration, time } from "../parts/format.js";
import { useHistory } from "../parts/history.js";
import { html } from "../parts/html.js";
import { href } from "../parts/router.js";
import { Actions } from "./actions.js";
import { Accumulators } from "./accumulators.js";
import { Checkpoints } from "./checkpoints.js";
import { Configuration } from "./configuration.js";
import { Exceptions } from "./exceptions.js";
import { Graph } from "./graph.js";
import { Logs } from "./logs.js";
import { Rescales } from "./rescales.js";
import { Plan, Stages } from "./stages.js";
import { Timeline } from "./timeline.js";
import { Watermarks } from "./watermarks.js";

const VIEWS = {
  graph: ["Graph", Graph],
  watermarks: ["Watermarks", Watermarks],
  checkpoints: ["Checkpoints", Checkpoints],
  exceptions: ["Exceptions", Exceptions],
  logs: ["Logs", Logs, "/jobs/{jobid}/logs"],
  timeline: ["Timeline", Timeline],
  rescales: ["Rescales", Rescales, "/jobs/{jobid}/rescales/history"],
  accumulators: ["Accumulators", Accumulators],
  configuration: ["Configuration", Configuration],
};

/** Of a data set, which takes no checkpoints and has no event time. */
const DATA_SET_VIEWS = {
  stages: ["Stages", Stages],
  timeline: ["Timeline", Timeline],
  exceptions: ["Exceptions", Exceptions],
  accumulators: ["Accumulators", Accumulators],
  plan: ["Plan", Plan],
};

export function Job({ id, route }) {
  const { data: job, error } = usePoll(path("jobs", id));
  const history = useHistory(job);
  if (!job) return html`<${Pending} error=${error} />`;
  const isDataSet = job["job-type"] === "DATASET";
  const views = isDataSet ? DATA_SET_VIEWS : VIEWS;
  const [view, ...rest] = views[route[0]] ? route : Object.keys(views);
  const View = views[view][1];
  const known = Object.entries(views).filter(([, [, , needs]]) => needs === undefined || answers(needs));
  const tabs = known.map(([tab, [label]]) => ({
    id: tab,
    label,
    href: href("job", id, tab),
    badge: tab === "exceptions" && job["num-restarts"] ? job["num-restarts"] : undefined,
  }));
  const tasks = job.vertices.reduce((total, vertex) => total + vertex.parallelism, 0);
  return html`<div class="page job">
    <div class="headline">
      <div class="names">
        <h1 title=${job.name}>${job.name || "a job without a name"}</h1>
        <p class="muted">
          <${State} state=${job.state} /> <span>for ${duration(job.duration)}, since ${time(job["start-time"])}</span>
          <span>${isDataSet ? `data set, ${counted(job.vertices.length, "stage")}, ${counted(tasks, "task")}` : `${counted(job.vertices.length, "operator chain")}, ${counted(tasks, "subtask")}`}</span>
          <${Copyable} text=${job.jid} />
        </p>
      </div>
      <${Actions} job=${job} />
    </div>
    <${Stale} error=${error} />
    ${job.waiting && html`<div class="notice warn" role="status"><b>Waiting for slots</b><p>${job.waiting}</p></div>`}
    <${Tabs} tabs=${tabs} current=${view} />
    <${View} job=${job} history=${history} route=${rest} />
  </div>`;
}

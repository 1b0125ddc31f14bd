// A data set, which its program runs: the stages of its run as a graph and a list, and its plan.

import { path, usePoll } from "../parts/api.js";
import { Card, State, Table } from "../parts/elements.js";
import { counted, duration, time, whole } from "../parts/format.js";
import { html } from "../parts/html.js";
import { JobGraph } from "../parts/job_graph.js";
import { go, href } from "../parts/router.js";

/** How many tasks of a stage are done, as a bar and a number. */
function Done({ stage, tasks }) {
  const share = tasks ? stage["tasks-done"] / tasks : 0;
  const failed = stage["failed-attempts"];
  return html`<span class="tasks" title=${failed ? `${failed} attempts of tasks have failed and were made again` : ""}><span class="load"><i class=${stage.state === "FAILED" ? "bad" : "done"} style=${{ width: `${share * 100}%` }}></i></span>${tasks ? `${stage["tasks-done"]}/${tasks}` : "–"}</span>`;
}

const COLUMNS = [
  { label: "Stage", wide: true, cell: (one) => html`<span class="strong">${one.name.replaceAll(" -> ", " → ")}</span>` },
  { label: "State", cell: (one) => html`<${State} state=${one.stage.state} />` },
  { label: "Tasks done", cell: (one) => html`<${Done} stage=${one.stage} tasks=${one.parallelism} />` },
  { label: "Rows", right: true, title: "that it has given, where they are counted", cell: (one) => (one.stage.rows === null ? "–" : whole(one.stage.rows)) },
  { label: "Began", right: true, cell: (one) => (one["start-time"] > 0 ? time(one["start-time"]) : "–") },
  { label: "For", right: true, cell: (one) => duration(one.duration) },
];

/** Why it has failed, in its first line. */
function Reason({ job }) {
  const { data } = usePoll(path("jobs", job.jid, "exceptions"));
  const reason = data?.["root-exception"];
  return reason ? html`<div class="notice bad" role="alert" id="reason"><b>It has failed</b><p>${reason.split("\n", 1)[0]} <a href=${href("job", job.jid, "exceptions")}>all of it</a></p></div>` : null;
}

export function Stages({ job, route }) {
  const choose = (id) => (id === route[0] ? go("job", job.jid, "stages") : go("job", job.jid, "stages", id));
  const older = job["stages-left-out"];
  return html`${job.state === "FAILED" && html`<${Reason} job=${job} />`}
    <${Card} flush id="graph">${job.vertices.length === 0
      ? html`<p class="empty">${job["end-time"] > 0 ? "It had no stages." : "No stage has begun yet."}</p>`
      : html`<${JobGraph} job=${job} hints=${[]} chosen=${route[0]} onChoose=${choose} />`}</${Card}>
    <${Card} title="Stages" flush id="stages" aside=${html`<span class="muted">${older > 0 ? `the newest; ${counted(older, "older one")} not kept` : html`<a class="muted" href=${href("job", job.jid, "plan")}>the plan</a>`}</span>`}>
      <${Table} columns=${COLUMNS} rows=${job.vertices} keyOf=${(one) => one.id} onRow=${(one) => choose(one.id)} rowClass=${(one) => (one.id === route[0] ? "chosen" : "")} empty="There is none." />
    </${Card}>`;
}

export function Plan({ job }) {
  const { explained } = job.plan;
  return html`<${Card} title="Plan" id="plan" aside=${html`<span class="muted">as it was optimised</span>`}>${explained
    ? html`<pre class="plan">${explained}</pre>`
    : html`<p class="empty">It is not known any more: a history keeps stages, and no plans.</p>`}</${Card}>`;
}

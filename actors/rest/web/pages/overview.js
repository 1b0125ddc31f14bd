// What the cluster has and does: slots, TaskManagers, jobs that run and jobs that have ended.

import { usePoll } from "../parts/api.js";
import { Card, Figure, Pending, Stale, State, Table } from "../parts/elements.js";
import { counted, duration, time, whole } from "../parts/format.js";
import { html } from "../parts/html.js";
import { go, href } from "../parts/router.js";

const ENDED = new Set(["FINISHED", "CANCELED", "FAILED"]);

/** Tasks by state, as a bar and a number. */
function Tasks({ tasks }) {
  const done = tasks.finished;
  const failed = tasks.failed + tasks.canceled + tasks.canceling;
  const waiting = tasks.total - tasks.running - done - failed;
  const parts = [["good", tasks.running, "running"], ["done", done, "finished"], ["warn", waiting, "starting"], ["bad", failed, "failed or canceled"]];
  const title = parts.filter(([, number]) => number).map(([, number, name]) => `${number} ${name}`).join(", ");
  return html`<span class="tasks" title=${title}><span class="load">${parts.map(([tone, number]) => number > 0 && html`<i class=${tone} style=${{ width: `${(number / tasks.total) * 100}%` }}></i>`)}</span>${tasks.running}/${tasks.total}</span>`;
}

const COLUMNS = [
  { label: "Job", wide: true, cell: (job) => html`<a class="strong" href=${href("job", job.jid)}>${job.name || job.jid}</a>${job["job-type"] === "DATASET" && html` <span class="pill off">data set</span>`}` },
  { label: "State", cell: (job) => html`<${State} state=${job.state} />` },
  { label: "Tasks running", cell: (job) => html`<${Tasks} tasks=${job.tasks} />` },
  { label: "Started", cell: (job) => time(job["start-time"]) },
  { label: "For", right: true, cell: (job) => duration(job.duration) },
];

const ENDED_COLUMNS = [
  ...COLUMNS.filter((column) => column.label !== "Tasks running"),
  { label: "Ended", cell: (job) => time(job["end-time"]) },
];

export function Overview() {
  const overview = usePoll("/overview");
  const jobs = usePoll("/jobs/overview");
  const error = overview.error ?? jobs.error;
  if (!overview.data || !jobs.data) return html`<${Pending} error=${error} />`;
  const figures = overview.data;
  const used = figures["slots-total"] - figures["slots-available"];
  const all = jobs.data.jobs;
  const live = all.filter((job) => !ENDED.has(job.state));
  const ended = all.filter((job) => ENDED.has(job.state));
  const open = (job) => go("job", job.jid);
  return html`<div class="page">
    <${Stale} error=${error} />
    <div class="figures">
      <div class="figure wide" data-figure="slots">
        <b>${whole(figures["slots-available"])} <small>of ${whole(figures["slots-total"])} slots free</small></b>
        <span class="meter" title=${`${used} slots are used`}><i style=${{ width: `${figures["slots-total"] ? (used / figures["slots-total"]) * 100 : 0}%` }}></i></span>
        <span><a href=${href("task-managers")}>${counted(figures.taskmanagers, "TaskManager")}</a></span>
      </div>
      <${Figure} label="running" name="jobs-running" value=${whole(figures["jobs-running"])} tone=${figures["jobs-running"] ? "good" : ""} />
      <${Figure} label="finished" name="jobs-finished" value=${whole(figures["jobs-finished"])} />
      <${Figure} label="canceled" name="jobs-cancelled" value=${whole(figures["jobs-cancelled"])} />
      <${Figure} label="failed" name="jobs-failed" value=${whole(figures["jobs-failed"])} tone=${figures["jobs-failed"] ? "bad" : ""} />
    </div>
    <${Card} title="Jobs that run" flush id="running">
      <${Table} columns=${COLUMNS} rows=${live} keyOf=${(job) => job.jid} onRow=${open}
        empty=${html`No job runs. Submit one: <code>headrace run --detached job.py</code>`} />
    </${Card}>
    <${Card} title="Jobs that have ended" flush id="ended">
      <${Table} columns=${ENDED_COLUMNS} rows=${ended} keyOf=${(job) => job.jid} onRow=${open} empty="None yet." />
    </${Card}>
  </div>`;
}

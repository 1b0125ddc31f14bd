// Why a job was restarted or has failed, and what has happened to it.

import { path, usePoll } from "../parts/api.js";
import { Card, Pending, Stale } from "../parts/elements.js";
import { counted, time } from "../parts/format.js";
import { html, useState } from "../parts/html.js";
import { href } from "../parts/router.js";

const firstLine = (text) => text.split("\n", 1)[0];

function Failure({ entry, isOpenAtFirst }) {
  const [isOpen, setIsOpen] = useState(isOpenAtFirst);
  const domain = entry.failureLabels?.domain;
  return html`<article class="failure">
    <button class="line" aria-expanded=${isOpen} onClick=${() => setIsOpen(!isOpen)}>
      <span class="when">${time(entry.timestamp)}</span>
      <span class="what"><b>${entry.exceptionName}</b> <span>${firstLine(entry.stacktrace)}</span></span>
      <span class="where">${entry.taskName && html`<span class="pill off">${entry.taskName}</span>`}${domain && html`<span class="pill warn">${domain}</span>`}</span>
    </button>
    ${isOpen && html`<pre>${entry.stacktrace}</pre>${entry.taskManagerId && html`<p class="muted small">on <a href=${href("task-managers", entry.taskManagerId)}>${entry.taskManagerId}</a></p>`}`}
  </article>`;
}

export function Exceptions({ job }) {
  const { data, error } = usePoll(path("jobs", job.jid, "exceptions"));
  if (!data) return html`<${Pending} error=${error} />`;
  const { entries, truncated } = data.exceptionHistory;
  const history = [...job.history].reverse();
  return html`<${Stale} error=${error} />
    <${Card} title="Exceptions" flush id="exceptions" aside=${html`<span class="muted">${counted(job["num-restarts"], "restart")}</span>`}>
      ${entries.length === 0 ? html`<p class="empty">Nothing has failed.</p>`
        : entries.map((entry, index) => html`<${Failure} key=${`${entry.timestamp} ${entry.taskName}`} entry=${entry} isOpenAtFirst=${index === 0} />`)}
      ${truncated && html`<p class="muted small inset">Older ones are not kept.</p>`}
    </${Card}>
    <${Card} title="What has happened" id="events">
      ${history.length === 0 ? html`<p class="empty">Nothing yet.</p>` : html`<ol class="events">${history.map((event) => html`<li><time>${time(event.timestamp)}</time><span>${event.text}</span></li>`)}</ol>`}
    </${Card}>`;
}

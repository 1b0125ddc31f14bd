// The log of a job, from all its processes, followed as it grows; chosen by operator, subtask, level and text.

import { ask, path, server } from "../parts/api.js";
import { Card, Pending, Stale } from "../parts/elements.js";
import { counted, time } from "../parts/format.js";
import { html, useEffect, useRef, useState } from "../parts/html.js";
import { partsOf } from "../parts/log_lines.js";

const MOST_LINES = 2_000;
const LEVELS = ["", "INFO", "WARNING", "ERROR"];
const RANK = { DEBUG: 0, INFO: 1, WARNING: 2, ERROR: 3, CRITICAL: 4 };

/** A line, with all that it has when somebody points at it. */
function Line({ file, line, parts: { at, level, place, said } }) {
  return html`<p class=${level.toLowerCase()} title=${`${file}\n${line}`}>${at !== null && html`<time>${time(at, { withMs: true })}</time> <b>${level}</b> ${place && html`<i>${place}</i> `}`}${said}</p>`;
}

/** The lines of a job so far; each question asks for what has come since the one before. */
function useLog(jobId, operator, subtask) {
  const [state, setState] = useState({ lines: null, error: null });
  useEffect(() => {
    const control = new AbortController();
    let [timer, after, lines] = [0, "", []];
    setState({ lines: null, error: null });
    const follow = async () => {
      clearTimeout(timer);
      if (document.hidden) return;
      const query = new URLSearchParams({ ...(operator && { operator }), ...(subtask && { subtask }), ...(after && { after }) });
      try {
        const answer = await ask(`${path("jobs", jobId, "logs")}?${query}`, { signal: control.signal });
        after = answer.after;
        lines = [...lines, ...answer.lines.map((one) => ({ ...one, parts: partsOf(one.line) }))].slice(-MOST_LINES);
        setState({ lines, error: null });
      } catch (error) {
        if (control.signal.aborted) return;
        setState({ lines: lines.length ? lines : null, error });
      }
      timer = setTimeout(follow, server.config["refresh-interval"]);
    };
    follow();
    document.addEventListener("visibilitychange", follow);
    return () => {
      clearTimeout(timer);
      control.abort();
      document.removeEventListener("visibilitychange", follow);
    };
  }, [jobId, operator, subtask]);
  return state;
}

export function Logs({ job }) {
  const [operator, setOperator] = useState("");
  const [subtask, setSubtask] = useState("");
  const [level, setLevel] = useState("");
  const [wanted, setWanted] = useState("");
  const { lines, error } = useLog(job.jid, operator, subtask);
  const box = useRef(null);
  const isAtEnd = useRef(true);
  const shown = (lines ?? []).filter(({ line, parts }) => (RANK[parts.level] ?? RANK.INFO) >= (RANK[level] ?? 0) && line.toLowerCase().includes(wanted.toLowerCase()));
  useEffect(() => {
    if (box.current && isAtEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  const noteScroll = () => (isAtEnd.current = box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < 30);
  const operators = [...new Set(job.plan.nodes.flatMap((node) => node.operators.map((one) => one.name)))];
  const most = Math.max(...job.vertices.map((vertex) => vertex.parallelism), 1);
  return html`<${Stale} error=${lines && error} /><${Card} title="Log" flush id="log" aside=${lines && html`<span class="muted">${counted(shown.length, "line")}, followed; the newest are last</span>`}>
    <div class="filters">
      <input type="search" aria-label="Search" placeholder="Search" value=${wanted} onInput=${(event) => setWanted(event.target.value)} />
      <select aria-label="Operator" value=${operator} onChange=${(event) => setOperator(event.target.value)}><option value="">all operators</option>${operators.map((name) => html`<option value=${name}>${name}</option>`)}</select>
      <select aria-label="Subtask" value=${subtask} onChange=${(event) => setSubtask(event.target.value)}><option value="">all subtasks</option>${Array.from({ length: most }, (_, index) => html`<option value=${String(index)}>subtask ${index + 1}</option>`)}</select>
      <select aria-label="Level" value=${level} onChange=${(event) => setLevel(event.target.value)}>${LEVELS.map((name) => html`<option value=${name}>${name ? `${name.toLowerCase()} and above` : "all levels"}</option>`)}</select>
    </div>
    ${lines === null ? html`<${Pending} error=${error} />`
      : shown.length === 0 ? html`<p class="empty">No line fits.</p>`
      : html`<div class="log" ref=${box} onScroll=${noteScroll}>${shown.map((one, index) => html`<${Line} key=${index} ...${one} />`)}</div>`}
  </${Card}>`;
}

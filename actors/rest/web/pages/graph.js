// The graph of a job with what is most likely wrong with it, the list of its vertices, and the drawer of one of them.

import { answers, path, server, usePoll } from "../parts/api.js";
import { Card, Load, State, Table } from "../parts/elements.js";
import { lag, percent, rate, whole } from "../parts/format.js";
import { hintsOf, holders, withKeys } from "../parts/hints.js";
import { html, useRef } from "../parts/html.js";
import { JobGraph } from "../parts/job_graph.js";
import { go, href } from "../parts/router.js";
import { Drawer } from "./drawer.js";

const ENDED = new Set(["FINISHED", "CANCELED", "FAILED"]);

const MOST_HINTS = 3;

const KEYS_EVERY_MS = 60_000;

const COLUMNS = (job) => [
  { label: "Operator chain", wide: true, cell: (one) => html`<a class="strong" href=${href("job", job.jid, "graph", one.id)}>${one.name}</a>` },
  { label: "State", cell: (one) => html`<${State} state=${one.status} />` },
  { label: "Subtasks", right: true, cell: (one) => one.parallelism },
  { label: "Load", cell: (one) => html`<${Load} busy=${one.busy} backpressured=${one.backpressured} />` },
  { label: "Busiest", right: true, title: "of its subtasks", cell: (one) => percent(one.spread?.["max-busy"]) },
  { label: "Held up", right: true, title: "share of time in which output waits for those behind it, of the worst subtask", cell: (one) => percent(one.spread?.["max-backpressured"]) },
  { label: "Records in", right: true, cell: (one) => whole(one.metrics?.["read-records"]) },
  { label: "in/s", right: true, cell: (one) => rate(one["read-records-per-second"]) },
  { label: "Records out", right: true, cell: (one) => whole(one.metrics?.["write-records"]) },
  { label: "Watermark lag", right: true, cell: (one) => lag(one["low-watermark"], job.now) || "–" },
  { label: "Skew", right: true, title: "mean distance of the subtasks' rates from their mean", cell: (one) => (one.spread && one.parallelism > 1 ? `${Math.round(one.spread.skew)} %` : "–") },
];

/** Hints whose vertex is known: those about event time name an operator, which is in a vertex. */
function useHints(job) {
  const isOver = ENDED.has(job.state);
  const { data } = usePoll(!isOver && answers("/jobs/{jobid}/watermarks") ? `${path("jobs", job.jid, "watermarks")}?makers=true` : "");
  if (isOver) return [];
  const vertexOf = new Map(job.plan.nodes.flatMap((node) => node.operators.map((operator) => [operator.uid, node.id])));
  const late = data ? holders(data).map((hint) => ({ ...hint, id: vertexOf.get(hint.id) ?? hint.id })) : [];
  return [...hintsOf(job), ...late];
}

/** The path that counts the keys of the first skewed vertex, where this token may see them; it looks for a second. */
function whereKeysAre(job, hints) {
  const [skewed] = hints.filter((hint) => hint.keyed);
  const isShown = server.config?.features["record-samples"] && answers("/jobs/{jobid}/vertices/{vertexid}/hotkeys");
  if (!skewed || !isShown) return "";
  const { edge, subtask } = skewed.keyed;
  return `${path("jobs", job.jid, "vertices", skewed.id, "hotkeys")}?edge=${edge}&subtask=${subtask}`;
}

function Hints({ job, hints }) {
  if (hints.length === 0) return null;
  return html`<div class="hints" aria-label="What to look at">${hints.slice(0, MOST_HINTS).map((hint) => html`<a key=${hint.kind + hint.id}
    class=${hint.kind === "bottleneck" ? "bad" : "warn"} data-hint=${hint.kind} href=${href("job", job.jid, "graph", hint.id)}><b>${hint.title}.</b> ${hint.text}</a>`)}</div>`;
}

export function Graph({ job, history, route }) {
  const found = useHints(job);
  const where = useRef("");
  where.current = whereKeysAre(job, found) || where.current; // a hint that comes and goes is no reason to count anew
  const { data: keys } = usePoll(where.current, KEYS_EVERY_MS);
  const hints = found.map((hint) => (hint.keyed && keys?.id === hint.id ? withKeys(hint, keys) : hint));
  const [chosen, tab] = route;
  const vertex = job.vertices.find((one) => one.id === chosen);
  const choose = (id) => (id === chosen ? go("job", job.jid, "graph") : go("job", job.jid, "graph", id));
  return html`<div class=${vertex ? "with-drawer" : ""}>
    <div class="beside">
      <${Hints} job=${job} hints=${hints} />
      <${Card} flush id="graph">${job.vertices.length === 0
        ? html`<p class="empty">The job is not deployed yet.</p>`
        : html`<${JobGraph} job=${job} hints=${hints} chosen=${chosen} onChoose=${choose} />`}</${Card}>
      <${Card} title="Operator chains" flush id="vertices">
        <${Table} columns=${COLUMNS(job)} rows=${job.vertices} keyOf=${(one) => one.id} onRow=${(one) => choose(one.id)} rowClass=${(one) => (one.id === chosen ? "chosen" : "")} />
      </${Card}>
    </div>
    ${vertex && html`<${Drawer} key=${vertex.id} job=${job} vertex=${vertex} points=${history.get(vertex.id) ?? []} tab=${tab} hints=${hints.filter((hint) => hint.id === vertex.id)} />`}
  </div>`;
}

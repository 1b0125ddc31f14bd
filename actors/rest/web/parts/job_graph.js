// The graph of a job as SVG: moved by dragging, enlarged by wheel, fingers and buttons. Places are computed once for a
// graph; of what is asked again and again only vertices and edges whose numbers have changed are drawn anew.

import { loadColour } from "./colours.js";
import { count, cut, duration, percent, rate } from "./format.js";
import { Component, html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { curve, layOut } from "./layout.js";

const SIZE = { width: 224, height: 96 };
const NAME_LENGTH = 27;
const NAME_LENGTH_OF_STAGE = 24; // Spark's words have capitals
const MOST_ZOOM = 2;
const LEAST_ZOOM = 0.04;
const FAR = 0.42;
const MARGIN = 24;
const ROOM = 56;
const HIGHEST = 620;

/** An element that is drawn anew only when its `signature` changes. */
class Still extends Component {
  shouldComponentUpdate(next) {
    return next.signature !== this.props.signature;
  }

  render({ draw }) {
    return draw();
  }
}

/** A name in two lines at most: operators of a chain are apart by arrows. */
function lines(name, length) {
  if (name.length <= length) return [name];
  const words = name.split(/(?<=-> | |, )/);
  let first = "";
  while (words.length > 1 && (first + words[0]).length <= length) first += words.shift();
  if (first === "") return [name.slice(0, length), cut(name.slice(length), length)];
  return [first, cut(words.join(""), length)];
}

const MARKS = { bottleneck: "bottleneck", skew: "skewed", watermark: "holds event time" };

/** The lines below a name, of tasks that go on: state, load, and what comes in and goes out. */
function ofTasks(vertex, busy, held) {
  const left = `${vertex.parallelism} × ${vertex.status.toLowerCase()}`;
  if (vertex.busy === undefined) return [left, "", ["no report yet", ""]];
  const out = held > 0.005 ? `${percent(held)} held up` : `${rate(vertex["write-records-per-second"])} out`;
  return [left, `${percent(busy)} busy`, [`${rate(vertex["read-records-per-second"])} in`, out]];
}

/** Of the band of a stage: names stand in white on it, in the light and in the dark. */
const STAGE_COLOURS = { RUNNING: loadColour(0.5, 0), FAILED: "#b3282d" };
const OTHER_STAGE = "#5b6a80";

/** The same of a stage, which comes to an end: state, how far it is, how long it has taken, and what it has given. */
function ofStage(vertex) {
  const { stage, parallelism } = vertex;
  const rows = stage.rows === null ? "" : `${count(stage.rows)} rows`;
  return [stage.state.toLowerCase(), parallelism ? `${stage["tasks-done"]} of ${parallelism} tasks` : "", [duration(vertex.duration), rows]];
}

function Vertex({ vertex, at, hints, isChosen, onChoose }) {
  const { spread } = vertex;
  const isKnown = vertex.busy !== undefined;
  const [busy, held] = [spread?.["max-busy"] ?? 0, spread?.["max-backpressured"] ?? 0];
  const colour = isKnown ? loadColour(busy, held) : vertex.stage ? STAGE_COLOURS[vertex.stage.state] ?? OTHER_STAGE : "var(--muted)";
  const names = lines(vertex.name, vertex.stage ? NAME_LENGTH_OF_STAGE : NAME_LENGTH);
  const [left, right, below] = vertex.stage ? ofStage(vertex) : ofTasks(vertex, busy, held);
  const kinds = [...new Set(hints.map((hint) => hint.kind))];
  const choose = (event) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onChoose(vertex.id);
  };
  return html`<g class=${`vertex ${isChosen ? "chosen" : ""} ${kinds.length ? "marked" : ""}`} transform=${`translate(${at.x - SIZE.width / 2} ${at.y - SIZE.height / 2})`}
      tabindex="0" role="button" aria-label=${vertex.stage ? `${vertex.name}, ${left}` : `${vertex.name}, busy ${percent(busy)}, held up ${percent(held)}`} data-vertex=${vertex.id} onClick=${choose} onKeyDown=${choose}>
    <title>${vertex.name}</title>
    <rect class="body" width=${SIZE.width} height=${SIZE.height} rx="9" />
    <path class="band" style=${{ fill: colour }} d=${`M0 9a9 9 0 0 1 9-9h${SIZE.width - 18}a9 9 0 0 1 9 9v33H0z`} />
    ${names.map((line, index) => html`<text class="name" x="12" y=${names.length === 1 ? 26 : 18 + index * 15}>${line}</text>`)}
    <text class="key" x="12" y="61">${left}</text>
    <text class="number" x=${SIZE.width - 12} y="61" text-anchor="end">${right}</text>
    <text class="key" x="12" y="81">${below[0]}</text>
    <text class="number" x=${SIZE.width - 12} y="81" text-anchor="end">${below[1]}</text>
    <rect class="frame" width=${SIZE.width} height=${SIZE.height} rx="9" style=${{ stroke: isKnown || vertex.stage ? colour : "var(--line)" }} />
    ${kinds.map((kind, index) => html`<g class=${`mark ${kind}`} transform=${`translate(${10 + index * 88} ${SIZE.height - 7})`}><rect width=${kind === "watermark" ? 118 : 80} height="18" rx="9" /><text x=${kind === "watermark" ? 59 : 40} y="13" text-anchor="middle">${MARKS[kind]}</text></g>`)}
  </g>`;
}

/** What is written on an edge: how records are dealt out, how many there are, how full its queues are. */
function Edge({ edge, points, isDown, label, held }) {
  const line = curve(points, isDown);
  const middle = points[Math.floor((points.length - 1) / 2)];
  const next = points[Math.floor((points.length - 1) / 2) + 1];
  const at = { x: (middle.x + next.x) / 2, y: (middle.y + next.y) / 2 };
  const width = edge.rate > 0 ? Math.min(1.4 + Math.log10(1 + edge.rate) * 0.7, 5.5) : 1.4;
  return html`<g class=${`edge ${edge.feedback ? "feedback" : ""} ${held ? "held" : ""}`}>
    <path d=${line} style=${{ strokeWidth: width }} marker-end="url(#arrow)" />
    ${!edge.isPlain && html`<g class="label" transform=${`translate(${at.x} ${at.y})`}><title>${edge.title}</title>
      <rect x="-33" y="-17" width="66" height="34" rx="6" />
      <text y="-4" text-anchor="middle">${edge.ship}</text><text class="number" y="10" text-anchor="middle">${label}</text>
      ${edge.fill !== undefined && html`<rect class="queue" x="-33" y="13" width="66" height="4" rx="2" /><rect class="fill" x="-33" y="13" width=${66 * Math.min(edge.fill, 1)} height="4" rx="2" />`}
    </g>`}
  </g>`;
}

/** Moves and enlarges without drawing anew: only the transform of one group changes. */
function useView(frame, group, layout) {
  const view = useRef({ x: 0, y: 0, zoom: 1, isFar: null });
  const [isFar, setIsFar] = useState(false);
  const apply = () => {
    const { x, y, zoom } = view.current;
    group.current?.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${zoom.toFixed(4)})`);
    if (view.current.isFar !== zoom < FAR) {
      view.current.isFar = zoom < FAR;
      setIsFar(zoom < FAR);
    }
  };
  const fit = (most = 1) => {
    if (!frame.current) return; // it has just gone
    const { clientWidth: width, clientHeight: height } = frame.current;
    const zoom = Math.max(Math.min((width - 2 * MARGIN) / layout.width, (height - 2 * MARGIN) / layout.height, most), LEAST_ZOOM);
    view.current = { ...view.current, zoom, x: (width - layout.width * zoom) / 2, y: (height - layout.height * zoom) / 2 };
    apply();
  };
  const enlarge = (factor, x, y) => {
    const zoom = Math.min(Math.max(view.current.zoom * factor, LEAST_ZOOM), MOST_ZOOM);
    const share = zoom / view.current.zoom;
    view.current = { ...view.current, zoom, x: x - (x - view.current.x) * share, y: y - (y - view.current.y) * share };
    apply();
  };
  const centre = (factor) => enlarge(factor, frame.current.clientWidth / 2, frame.current.clientHeight / 2);
  useLayoutEffect(() => fit(), [layout]);
  useEffect(() => {
    const own = frame.current;
    const pointers = new Map();
    let [moved, wasWidth] = [0, own.clientWidth];
    const at = (event) => {
      const box = own.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const down = (event) => {
      if (event.target.closest("button")) return;
      pointers.set(event.pointerId, at(event));
      moved = 0;
    };
    const move = (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const now = at(event);
      const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
      if (others.length > 0) {
        const distance = (point) => Math.hypot(point.x - others[0].x, point.y - others[0].y);
        enlarge(distance(now) / Math.max(distance(before), 1), (now.x + others[0].x) / 2, (now.y + others[0].y) / 2);
      }
      moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
      if (moved > 4) own.setPointerCapture?.(event.pointerId);
      view.current.x += (now.x - before.x) / (others.length + 1);
      view.current.y += (now.y - before.y) / (others.length + 1);
      pointers.set(event.pointerId, now);
      apply();
    };
    const up = (event) => pointers.delete(event.pointerId);
    const click = (event) => {
      if (moved > 4) event.stopPropagation(); // it was dragged
    };
    const wheel = (event) => {
      event.preventDefault();
      const { x, y } = at(event);
      enlarge(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), x, y);
    };
    const observer = new ResizeObserver(() => {
      if (own.clientWidth !== wasWidth) fit();
      wasWidth = own.clientWidth;
    });
    own.addEventListener("pointerdown", down);
    own.addEventListener("pointermove", move);
    own.addEventListener("pointerup", up);
    own.addEventListener("pointercancel", up);
    own.addEventListener("click", click, true);
    own.addEventListener("wheel", wheel, { passive: false });
    observer.observe(own);
    return () => {
      observer.disconnect();
      own.removeEventListener("pointerdown", down);
      own.removeEventListener("pointermove", move);
      own.removeEventListener("pointerup", up);
      own.removeEventListener("pointercancel", up);
      own.removeEventListener("click", click, true);
      own.removeEventListener("wheel", wheel);
    };
  }, [layout]);
  return { isFar, fit, centre };
}

/** The edges of a plan, with what can be said of their records: it is exact where a vertex has one input or one output. */
export function edgesOf(job) {
  const byId = new Map(job.vertices.map((vertex) => [vertex.id, vertex]));
  const edges = job.plan.nodes.flatMap((node) => (node.inputs ?? []).map((input) => ({ ...input, source: input.id, target: node.id })));
  const number = (key) => edges.reduce((counts, edge) => counts.set(edge[key], (counts.get(edge[key]) ?? 0) + 1), new Map());
  const [outputs, inputs] = [number("source"), number("target")];
  return edges.filter((edge) => byId.has(edge.source)).map((edge) => {
    const [source, target] = [byId.get(edge.source), byId.get(edge.target)];
    const known = edge["records-per-second"]
      ?? (inputs.get(edge.target) === 1 ? target["read-records-per-second"] : undefined)
      ?? (outputs.get(edge.source) === 1 ? source["write-records-per-second"] : undefined);
    const fill = edge["queue-fill"];
    const title = [
      `${source.name} → ${target.name}`,
      edge.ship_strategy.toLowerCase() + (edge.side_output ? `, side output ${edge.side_output}` : ""),
      source.stage ? "" : known === undefined ? "rate not known" : `${rate(known)}`,
      fill === undefined ? "" : `fullest queue ${percent(fill)}`,
    ].filter(Boolean).join("\n");
    return { source: edge.source, target: edge.target, feedback: edge.feedback === true, ship: edge.ship_strategy.toLowerCase(), isPlain: source.stage !== undefined, rate: known, fill, title, held: source.spread?.["max-backpressured"] ?? 0 };
  });
}

export function JobGraph({ job, hints, chosen, onChoose }) {
  const frame = useRef(null);
  const group = useRef(null);
  const [isDown, setIsDown] = useState(() => matchMedia("(max-width: 700px)").matches);
  useEffect(() => {
    const narrow = matchMedia("(max-width: 700px)");
    const changed = () => setIsDown(narrow.matches);
    narrow.addEventListener("change", changed);
    return () => narrow.removeEventListener("change", changed);
  }, []);
  const edges = edgesOf(job);
  const shape = JSON.stringify([job.vertices.map((vertex) => vertex.id), edges.map((edge) => [edge.source, edge.target, edge.feedback])]);
  const places = useMemo(() => {
    const [ids, pairs] = JSON.parse(shape);
    const gap = isDown ? { along: 66, across: 28 } : { along: 110, across: 30 };
    const known = pairs.map(([source, target, feedback]) => ({ source, target, feedback }));
    const layout = layOut(ids, known, { size: SIZE, gap, isDown });
    return { layout, routes: known.map((edge) => layout.routes.get(edge)) };
  }, [shape, isDown]);
  const { isFar, fit, centre } = useView(frame, group, places.layout);
  return html`<div class=${`graph ${isFar ? "far" : ""}`} ref=${frame} style=${{ height: `${Math.round(Math.min(places.layout.height + 2 * ROOM, HIGHEST))}px` }}>
    <svg role="group" aria-label="Job graph"><defs>
        <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" orient="auto" markerUnits="userSpaceOnUse"><path d="M0 .6 7.4 4 0 7.4z" /></marker>
      </defs><g ref=${group}>
      ${edges.map((edge, index) => {
        const isHeld = edge.held > 0.1;
        const label = edge.rate === undefined ? "? /s" : rate(edge.rate);
        return html`<${Still} key=${`${index} ${shape.length}`} signature=${`${isDown}|${edge.title}|${label}|${isHeld}|${edge.fill}`}
          draw=${() => html`<${Edge} edge=${edge} points=${places.routes[index]} isDown=${isDown} label=${label} held=${isHeld} />`} />`;
      })}
      ${job.vertices.map((vertex) => {
        const own = hints.filter((hint) => hint.id === vertex.id);
        const signature = JSON.stringify([isDown, shape.length, vertex.name, vertex.parallelism, vertex.status, vertex.id === chosen, own.map((hint) => hint.kind),
          vertex.stage && JSON.stringify(ofStage(vertex)), count(vertex["read-records-per-second"]), count(vertex["write-records-per-second"]), percent(vertex.spread?.["max-busy"]), percent(vertex.spread?.["max-backpressured"])]);
        return html`<${Still} key=${vertex.id} signature=${signature}
          draw=${() => html`<${Vertex} vertex=${vertex} at=${places.layout.vertices.get(vertex.id)} hints=${own} isChosen=${vertex.id === chosen} onChoose=${onChoose} />`} />`;
      })}
    </g></svg>
    <div class="tools"><button title="Enlarge" aria-label="Enlarge" onClick=${() => centre(1.3)}>+</button><button title="Reduce" aria-label="Reduce" onClick=${() => centre(1 / 1.3)}>−</button><button title="Show all of it" aria-label="Show all of it" onClick=${() => fit()}>⤢</button></div>
    ${!job.vertices[0]?.stage && html`<div class="key-of-colours" aria-hidden="true"><span>idle</span><i style=${{ background: `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map((share) => loadColour(share, 0)).join(", ")})` }}></i><span>busy</span><i class="held"></i><span>held up</span></div>`}
  </div>`;
}

// Where an operator spends its time, as the server has sampled it: frames are as wide as they are often seen.

import { path, usePoll } from "../parts/api.js";
import { Pending, Stale } from "../parts/elements.js";
import { percent, time, whole } from "../parts/format.js";
import { html, useState } from "../parts/html.js";

const KINDS = [["FULL", "all"], ["ON_CPU", "on processor"], ["OFF_CPU", "waiting"]];
// What the server says in the place of a time, where there is no tree.
const WHY_NOT = { [-1]: "The operator chain has ended.", [-2]: "Flame graphs are forbidden (rest.flamegraph.enabled).", [-3]: "Samples are being taken: this takes about five seconds …" };
const NARROWEST = 0.002;
const ROW = 20;

/** Frames with their places, depth by depth: `{name, value, from, depth}`, shares of the whole from 0 to 1. */
function framesOf(root) {
  const frames = [];
  const open = [[root, 0, 0]];
  while (open.length > 0) {
    const [node, from, depth] = open.pop();
    const share = node.value / root.value;
    if (share < NARROWEST) continue;
    frames.push({ node, name: node.name, share, from, depth });
    let at = from;
    for (const child of node.children ?? []) {
      open.push([child, at, depth + 1]);
      at += child.value / root.value;
    }
  }
  return frames;
}

const hue = (name) => [...name].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 997, 7) % 40;

export function FlameGraph({ job, vertex }) {
  const [kind, setKind] = useState("FULL");
  const [subtask, setSubtask] = useState("");
  const [top, setTop] = useState(null);
  const asked = `${path("jobs", job.jid, "vertices", vertex.id, "flamegraph")}?type=${kind}${subtask && `&subtaskindex=${subtask}`}`;
  const { data, error } = usePoll(asked, 2_500);
  const choose = (next) => {
    setKind(next);
    setTop(null);
  };
  const root = top ?? data?.data;
  return html`<div class="segments inset">${KINDS.map(([id, label]) => html`<button key=${id} aria-pressed=${kind === id} onClick=${() => choose(id)}>${label}</button>`)}
      ${vertex.parallelism > 1 && html`<select aria-label="Subtask" value=${subtask} onChange=${(event) => {
        setSubtask(event.target.value);
        setTop(null);
      }}><option value="">all subtasks</option>${Array.from({ length: vertex.parallelism }, (_, index) => html`<option value=${String(index)}>subtask ${index + 1}</option>`)}</select>`}
      ${top && html`<button onClick=${() => setTop(null)}>whole</button>`}</div>
    <${Stale} error=${data && error} />
    ${!data ? html`<${Pending} error=${error} />` : !root || !(root.value > 0) ? html`<p class="empty">${WHY_NOT[data.endTimestamp] ?? "Nothing of this kind was found."}</p>` : html`<${Flames} root=${root} onChoose=${setTop} />
    <p class="muted small inset">${whole(root.value)} samples, until ${time(data.endTimestamp)}. A click enlarges a frame.</p>`}`;
}

function Flames({ root, onChoose }) {
  const frames = framesOf(root);
  const depth = Math.max(...frames.map((frame) => frame.depth)) + 1;
  return html`<div class="flames" style=${{ height: `${depth * ROW}px` }}>${frames.map((frame) => html`<button
    title=${`${frame.name}\n${whole(frame.node.value)} samples, ${percent(frame.share)}`} onClick=${() => onChoose(frame.node)}
    style=${{ left: `${frame.from * 100}%`, width: `${frame.share * 100}%`, top: `${frame.depth * ROW}px`, "--hue": hue(frame.name) }}>${frame.name}</button>`)}</div>`;
}

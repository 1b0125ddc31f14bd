// Bars over time, row by row.

import { duration, time } from "./format.js";
import { html } from "./html.js";

const TICKS = 5;

/**
 * Draws rows `{id, label, title?, href?, onClick?, isOpen?, indent?, parts: [{from, to, tone, label}]}` between two
 * points in time; marks `[{at, label}]` are lines through all rows. Times are told from the left edge where `isRelative`.
 */
export function Gantt({ rows, from, to, isRelative = false, legend = [], marks = [] }) {
  const span = Math.max(to - from, 1);
  const place = (at) => `${(Math.min(Math.max(at - from, 0), span) / span) * 100}%`;
  const ticks = Array.from({ length: TICKS }, (_, index) => from + (span * index) / (TICKS - 1));
  return html`<div class="gantt">
    ${legend.length > 0 && html`<div class="legend">${legend.map(([tone, label]) => html`<span><i class=${`swatch ${tone}`}></i>${label}</span>`)}</div>`}
    <div class="ruler"><span></span><div>${ticks.map((at, index) => html`<span class=${index === TICKS - 1 ? "last" : ""} style=${{ left: place(at) }}>${isRelative ? (at === from ? "0" : duration(at - from)) : time(at)}</span>`)}</div></div>
    ${rows.map((row) => html`<div key=${row.id} class=${row.indent ? "row inner" : "row"}>
      ${row.onClick
        ? html`<button class="name" title=${row.title ?? row.label} aria-expanded=${row.isOpen} onClick=${row.onClick}><i class=${row.isOpen ? "caret open" : "caret"}></i>${row.label}</button>`
        : html`<span class="name" title=${row.title ?? row.label}>${row.label}</span>`}
      <div class="track">${row.parts.map((part) => html`<i class=${part.tone} title=${part.label} style=${{ left: place(part.from), width: `max(2px, ${((Math.max(part.to - part.from, 0)) / span) * 100}%)` }}></i>`)}
        ${marks.map((mark) => html`<b title=${mark.label} style=${{ left: place(mark.at) }}></b>`)}</div>
    </div>`)}
  </div>`;
}

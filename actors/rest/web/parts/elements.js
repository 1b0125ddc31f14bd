// The small things that pages are made of.

import { percent } from "./format.js";
import { Component, html, useEffect, useRef } from "./html.js";

const TONES = {
  RUNNING: "good",
  FINISHED: "done",
  COMPLETED: "good",
  IN_PROGRESS: "info",
  FAILED: "bad",
  FAILING: "bad",
  CANCELED: "off",
  CANCELLING: "warn",
  CANCELING: "warn",
  RESTARTING: "warn",
  SUSPENDED: "off",
};

/** A state as a pill. */
export function State({ state }) {
  return html`<span class=${`pill ${TONES[state] ?? "new"}`}><i class="dot"></i>${state.toLowerCase().replaceAll("_", " ")}</span>`;
}

/** A number that matters, with its name. */
export function Figure({ label, value, hint, tone = "", name }) {
  return html`<div class=${`figure ${tone}`} title=${hint} data-figure=${name ?? label}>
    <b>${value}</b><span>${label}</span>
  </div>`;
}

/** How time was spent: busy, held up, idle. */
export function Load({ busy = 0, backpressured = 0 }) {
  const rest = Math.max(1 - busy - backpressured, 0);
  return html`<span class="load" title=${`busy ${percent(busy)}, held up ${percent(backpressured)}, idle ${percent(rest)}`}>
    <i class="busy" style=${{ width: `${Math.min(busy, 1) * 100}%` }}></i>
    <i class="held" style=${{ width: `${Math.min(backpressured, 1 - busy) * 100}%` }}></i>
  </span>`;
}

/** A box with a title. */
export function Card({ title, aside, children, flush = false, id }) {
  return html`<section class=${flush ? "card flush" : "card"} id=${id}>
    ${title !== undefined && html`<header><h2>${title}</h2>${aside}</header>`}${children}
  </section>`;
}

/**
 * A table. Columns are `{label, cell(row), right?, wide?, title?}`; on a phone each row becomes a small card of its own,
 * in which each cell has its label before it.
 */
export function Table({ columns, rows, keyOf, onRow, empty = "Nothing yet.", rowClass }) {
  if (rows.length === 0) return html`<p class="empty">${empty}</p>`;
  return html`<div class="scroll"><table class="data">
    <thead><tr>${columns.map((column) => html`<th class=${column.right && "right"} title=${column.title}>${column.label}</th>`)}</tr></thead>
    <tbody>${rows.map((row, index) => html`<tr
        key=${keyOf ? keyOf(row) : index}
        class=${[onRow && "clickable", rowClass?.(row)].filter(Boolean).join(" ")}
        onClick=${onRow && (() => onRow(row))}
      >${columns.map((column) => html`<td class=${[column.right && "right", column.wide && "wide"].filter(Boolean).join(" ")} data-label=${column.label}>${column.cell(row)}</td>`)}</tr>`)}
    </tbody></table></div>`;
}

/** Links of which one is where we are; `tabs` are `{id, label, href, badge?}`. */
export function Tabs({ tabs, current, small = false }) {
  const own = useRef(null);
  useEffect(() => {  // where there are more than fit
    const link = own.current.querySelector("[aria-current=page]");
    if (link) own.current.scrollLeft = link.offsetLeft + link.offsetWidth / 2 - own.current.offsetWidth / 2;
  }, [current]);
  return html`<nav ref=${own} class=${small ? "tabs small" : "tabs"} aria-label="Views">${tabs.map((tab) => html`<a
    key=${tab.id} href=${tab.href} aria-current=${tab.id === current ? "page" : undefined}
  >${tab.label}${tab.badge ? html`<em>${tab.badge}</em>` : ""}</a>`)}</nav>`;
}

/** What is shown in the place of an answer: that it is awaited, or why there is none. */
export function Pending({ error }) {
  if (!error) return html`<div class="pending" role="status"><i class="spinner"></i>Asking the cluster …</div>`;
  return html`<div class="notice bad" role="alert"><b>${error.status === 404 ? "There is no such thing" : "No answer"}</b><p>${error.message}</p></div>`;
}

/** That the newest answer is not new any more. */
export function Stale({ error }) {
  return error ? html`<div class="notice warn" role="status">What you see is not fresh: ${error.message}. Asking on …</div>` : null;
}

/** A text with a button that copies it. */
export function Copyable({ text }) {
  const copy = (event) => {
    event.stopPropagation();
    navigator.clipboard?.writeText(text);
  };
  return html`<span class="copyable"><code>${text}</code>${navigator.clipboard && html`<button class="plain" title="Copy" aria-label="Copy" onClick=${copy}><svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path d="M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linejoin="round" /></svg></button>`}</span>`;
}

/** A window over the page; Escape and a click beside it close it. */
export function Dialog({ title, onClose, children }) {
  const own = useRef(null);
  useEffect(() => {
    own.current.showModal();
    own.current.querySelector("input, textarea")?.focus();
  }, []);
  return html`<dialog ref=${own} aria-label=${title} onClose=${onClose} onClick=${(event) => event.target === own.current && own.current.close()}>
    <div class="inside"><h2>${title}</h2>${children}</div>
  </dialog>`;
}

/** Keeps what fails inside it from taking the rest of the page along. */
export class Fence extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({ error });
  }

  componentDidUpdate(before) {
    if (before.at !== this.props.at && this.state.error) this.setState({ error: null });
  }

  render({ children }, { error }) {
    if (!error) return children;
    return html`<div class="notice bad" role="alert"><b>This view has failed</b><p>${String(error.message ?? error)}</p></div>`;
  }
}

// Lines over time, as SVG, with the values under the pointer.

import { count, time } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";

const COLOURS = 8;
const HEIGHT = 132;
const LEFT = 44;
const BOTTOM = 18;
const TOP = 8;

/** Round steps for an axis from 0, or from below it, up to what is there. */
export function ticksOf(least, most) {
  const span = most - least || Math.abs(most) || 1;
  const raw = span / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const first = Math.floor(least / step) * step;
  const ticks = [];
  for (let tick = first; tick < most + step * 0.999 && ticks.length < 8; tick += step) ticks.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
  return ticks.length > 1 ? ticks : [first, first + step];
}

/** Draws `{name, points: [[at, value]], colour?}`. `most` fixes the upper end of the axis. */
export function Chart({ title, lines, format = count, most, note }) {
  const own = useRef(null);
  const [width, setWidth] = useState(420);
  const [pointer, setPointer] = useState(null);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(entry.contentRect.width, 160)));
    observer.observe(own.current);
    return () => observer.disconnect();
  }, []);
  const known = lines.filter((line) => line.points.length > 0);
  const all = known.flatMap((line) => line.points);
  const values = all.map(([, value]) => value).filter(Number.isFinite);
  const from = Math.min(...all.map(([at]) => at));
  const to = Math.max(...all.map(([at]) => at), from + 1);
  const isFlat = values.length > 0 && Math.min(...values) > 1e6 && Math.max(...values) / Math.min(...values) < 1.5;
  const least = isFlat ? Math.min(...values) : Math.min(0, ...values);
  const ticks = ticksOf(least, most ?? Math.max(...values, least + (isFlat ? 1 : 0.001)));
  const [low, high] = [ticks[0], most ?? ticks[ticks.length - 1]];
  const x = (at) => LEFT + ((at - from) / (to - from)) * (width - LEFT - 8);
  const y = (value) => TOP + (1 - (value - low) / (high - low || 1)) * (HEIGHT - TOP - BOTTOM);
  const near = (points) => points.reduce((best, point) => (Math.abs(point[0] - pointer) < Math.abs(best[0] - pointer) ? point : best));
  const shown = pointer === null ? null : known.map((line) => ({ ...line, point: near(line.points) }));
  const move = (event) => {
    const box = own.current.getBoundingClientRect();
    setPointer(from + ((event.clientX - box.left - LEFT) / (width - LEFT - 8)) * (to - from));
  };
  const tone = (line, index) => `line-${(line.colour ?? index) % COLOURS}`;
  return html`<figure class="chart" data-chart=${title}>
    <figcaption><b>${title}</b>${note && html`<span class="muted">${note}</span>`}</figcaption>
    <div ref=${own} onPointerMove=${move} onPointerLeave=${() => setPointer(null)}>
      ${values.length === 0
        ? html`<p class="empty">Waiting for the first report …</p>`
        : html`<svg width=${width} height=${HEIGHT} role="img" aria-label=${title}>
          ${ticks.filter((tick) => tick <= high).map((tick) => html`<g class="tick"><line x1=${LEFT} x2=${width - 8} y1=${y(tick)} y2=${y(tick)} /><text x=${LEFT - 6} y=${y(tick) + 4} text-anchor="end">${format(tick)}</text></g>`)}
          <text class="axis" x=${LEFT} y=${HEIGHT - 4}>${time(from)}</text><text class="axis" x=${width - 8} y=${HEIGHT - 4} text-anchor="end">${time(to)}</text>
          ${known.map((line, index) => (line.points.length === 1
            ? html`<circle class=${tone(line, index)} cx=${x(line.points[0][0])} cy=${y(line.points[0][1])} r="2.5" />`
            : html`<polyline class=${tone(line, index)} points=${line.points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ")} />`))}
          ${shown && html`<line class="pointer" x1=${x(shown[0].point[0])} x2=${x(shown[0].point[0])} y1=${TOP} y2=${HEIGHT - BOTTOM} />`}
          ${shown?.map((line, index) => html`<circle class=${tone(line, index)} cx=${x(line.point[0])} cy=${y(line.point[1])} r="3" />`)}
        </svg>`}
    </div>
    <div class="legend">${known.map((line, index) => html`<span><i class=${`swatch ${tone(line, index)}`}></i>${line.name} <b>${format((shown?.[index].point ?? line.points[line.points.length - 1])[1])}</b></span>`)}${shown && html`<span class="muted">at ${time(shown[0].point[0])}</span>`}</div>
  </figure>`;
}

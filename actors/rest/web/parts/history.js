// What the vertices of a job were doing since the page was opened: charts are drawn of it. Nothing is kept elsewhere.

import { useMemo, useRef, useState } from "./html.js";

const MOST_POINTS = 400;

/** Series by vertex: each a list of `{at, in, out, busy, held}`, oldest first. */
export function useHistory(job) {
  const known = useRef({ at: 0, series: new Map() });
  return useMemo(() => {
    if (!job || job.now === known.current.at) return known.current.series;
    known.current.at = job.now;
    for (const vertex of job.vertices) {
      if (vertex.busy === undefined) continue;
      const points = known.current.series.get(vertex.id) ?? [];
      points.push({
        at: job.now,
        in: vertex["read-records-per-second"],
        out: vertex["write-records-per-second"],
        busy: vertex.busy,
        held: vertex.backpressured,
      });
      if (points.length > MOST_POINTS) points.splice(0, points.length - MOST_POINTS);
      known.current.series.set(vertex.id, points);
    }
    return known.current.series;
  }, [job]);
}

/**
 * Keeps what a question was answered, as lines of a chart. `read(data)` gives `{at, values: {name: number}}`; lines are
 * `{name, points: [[at, value]]}`.
 */
export function useLines(data, read, signature) {
  const lines = useRef(new Map());
  const [state] = useState({ signature });
  if (state.signature !== signature) {
    state.signature = signature;
    lines.current = new Map();
  }
  return useMemo(() => {
    const { at, values } = data ? read(data) : { at: 0, values: {} };
    for (const [name, value] of Object.entries(values)) {
      const points = lines.current.get(name) ?? [];
      if (points.length === 0 || points[points.length - 1][0] < at) points.push([at, value]);
      if (points.length > MOST_POINTS) points.shift();
      lines.current.set(name, points);
    }
    return [...lines.current].map(([name, points]) => ({ name, points: [...points] }));
  }, [data, signature]);
}

// What is most likely wrong with a job: read off numbers, said in words. All of it is pure.

import { duration, isEnd, isNone, percent, whole } from "./format.js";

// Flink calls a share of time under backpressure up to this one OK.
export const HELD_UP = 0.1;
// An operator with less to do than this does not suffer from its skew, and holds nobody up by itself.
const BUSY = 0.25;
// An operator that is busy for longer leaves nothing of its slot, which has one thread.
const SATURATED = 0.9;
// Flink's measure of skew, in percent: the mean distance from the mean over the mean.
const SKEWED = 40;
const FEWEST_RECORDS_PER_S = 10;
// A key with less of a subtask's records is no reason for its skew.
const HOT = 0.1;
const MOST_KEYS = 3;
const WATERMARK_BEHIND_MS = 5_000;

/** The vertices that each vertex reads, and those that read it; loops left out. */
export function neighbours(job) {
  const inputs = new Map(job.plan.nodes.map((node) => [node.id, []]));
  const outputs = new Map(job.plan.nodes.map((node) => [node.id, []]));
  for (const node of job.plan.nodes) {
    for (const input of node.inputs ?? []) {
      if (input.feedback || !outputs.has(input.id)) continue;
      inputs.get(node.id).push(input.id);
      outputs.get(input.id).push(node.id);
    }
  }
  return { inputs, outputs };
}

const heldUp = (vertex) => vertex !== undefined && (vertex.spread?.["max-backpressured"] ?? vertex.backpressured ?? 0) > HELD_UP;

/** All vertices from which records come to this one through vertices that are held up, and are held up themselves. */
function chainAbove(id, inputs, byId) {
  const found = new Set();
  const open = [id];
  while (open.length > 0) {
    for (const input of inputs.get(open.pop()) ?? []) {
      if (found.has(input) || !heldUp(byId.get(input))) continue;
      found.add(input);
      open.push(input);
    }
  }
  return found;
}

/** The busiest of some vertices, by their busiest subtasks. */
const busiestOf = (vertices) => vertices.reduce((one, other) => (other.spread["max-busy"] > one.spread["max-busy"] ? other : one));

/** Whom each end of a chain that is held up waits for: of its readers, none of which is held up, the busiest. */
function causesOf(job, inputs, outputs, byId) {
  const causes = new Set();
  for (const vertex of job.vertices) {
    const readers = outputs.get(vertex.id).map((id) => byId.get(id)).filter((reader) => reader?.spread);
    if (!heldUp(vertex) || readers.length === 0 || readers.some(heldUp)) continue;
    const busiest = busiestOf(readers);
    if (busiest.spread["max-busy"] < BUSY) {
      // It waits for its turn: a task that is in one slot with it takes the time.
      const chain = [...chainAbove(busiest.id, inputs, byId)].map((id) => byId.get(id));
      const taking = busiestOf([busiest, ...chain]);
      causes.add(taking.spread["max-busy"] < BUSY ? busiest.id : taking.id);
      continue;
    }
    // Who is busy rather than held up is no victim of readers that have less to do.
    const [busy, held] = [vertex.spread["max-busy"], vertex.spread["max-backpressured"]];
    causes.add(busy > held && busy > busiest.spread["max-busy"] ? vertex.id : busiest.id);
  }
  return causes;
}

/** Who takes all the time of a slot: what it reads from is in there with it, and waits for its turn instead of credit. */
function saturating(job, inputs, byId) {
  const shares = (vertex) => inputs.get(vertex.id).some((id) => byId.get(id)?.slotSharingGroup === vertex.slotSharingGroup);
  const busy = job.vertices.filter((vertex) => vertex.slotSharingGroup !== undefined && vertex.spread?.["max-busy"] >= SATURATED);
  return new Set(busy.filter(shares).map((vertex) => vertex.id));
}

/** What a bottleneck does to others, by the names of the vertices that it holds up, and what may be done. */
function harm(vertex, names) {
  const whom = names.length === 1 ? names[0] : `${names.length} operator chains before it`;
  const busy = percent(vertex.spread["max-busy"]);
  const rescale = `rescale it (parallelism is ${vertex.parallelism})`;
  if (vertex.spread["max-busy"] < BUSY) {
    return `It holds up ${whom}, though its busiest subtask is busy for ${busy} of the time only. It may wait for answers, of asynchronous calls or under locks: allow it more of them at a time, or ${rescale}. Or this machine has more to do than its cores can.`;
  }
  const effect = names.length === 0 ? "what is in one slot with it waits for its turn" : `holds up ${whom}`;
  return `Its busiest subtask is busy for ${busy} of the time, and ${effect}. Make it faster, or ${rescale}.`;
}

/**
 * Hints by vertex: `{kind, id, title, text}`. A *bottleneck* is the first busy operator below a chain that is held up; of
 * several readers of such a chain the busiest is meant. Where nothing is held up it is who takes all the time of a slot.
 */
export function hintsOf(job) {
  const { inputs, outputs } = neighbours(job);
  const byId = new Map(job.vertices.map((vertex) => [vertex.id, vertex]));
  const heldUpBy = causesOf(job, inputs, outputs, byId);
  const causes = heldUpBy.size > 0 ? heldUpBy : saturating(job, inputs, byId);
  const nodeOf = new Map(job.plan.nodes.map((node) => [node.id, node]));
  const hints = [];
  for (const vertex of job.vertices) {
    if (vertex.spread === undefined) continue;
    if (causes.has(vertex.id)) {
      const names = [...chainAbove(vertex.id, inputs, byId)].map((id) => byId.get(id).name);
      hints.push({
        kind: "bottleneck",
        id: vertex.id,
        title: vertex.spread["max-busy"] < BUSY ? `${vertex.name} holds others up` : `${vertex.name} is the bottleneck`,
        text: harm(vertex, names),
      });
    }
    const { skew, "largest-share": share, "largest-subtask": subtask } = vertex.spread;
    const isTelling = vertex["read-records-per-second"] >= FEWEST_RECORDS_PER_S && vertex.spread["max-busy"] >= BUSY;
    if (isTelling && vertex.parallelism > 1 && skew >= SKEWED) {
      const keyed = nodeOf.get(vertex.id).inputs?.find((input) => input.ship_strategy === "HASH");
      const reads = `Subtask ${subtask + 1} of ${vertex.parallelism} reads ${percent(share)} of its records.`;
      hints.push({
        kind: "skew",
        id: vertex.id,
        title: `${vertex.name} is skewed`,
        text: `${reads} ${inputs.get(vertex.id).length > 0 ? "A few keys may have most of them." : "Its splits may be uneven."}`,
        ...(keyed && { keyed: { edge: keyed.edge, subtask, reads } }),
      });
    }
  }
  const rank = { bottleneck: 0, skew: 1 };
  return hints.sort((one, other) => rank[one.kind] - rank[other.kind]);
}

/** A hint about skew with the keys that its subtask reads most, as the server has counted them; as it is without that. */
export function withKeys(hint, answer) {
  const found = answer?.subtasks.find((one) => one.subtask === hint.keyed?.subtask);
  if (!found || found["looked-at"] === 0) return hint;
  const hot = found.keys.filter((one) => one.share >= HOT).slice(0, MOST_KEYS);
  const said = hot.map((one, index) => `${index === 0 ? "Key " : ""}${one.key} has ${percent(one.share)}${index === 0 ? " of what it reads" : ""}`);
  const text = hot.length > 0 ? said.join(", ") : `No key has ${percent(HOT)} of them, of ${whole(found["keys-seen"])} that were seen`;
  return { ...hint, text: `${hint.keyed.reads} ${text}.` };
}

/** Operators that make watermarks, each with its subtasks' parts: sources, and what assigns event times. */
const makers = (answer) => answer.vertices.flatMap((vertex) => vertex.operators).filter((operator) => operator.subtasks.some((subtask) => subtask.parts.length > 0));

/** What holds event time back: a source, or one of its splits, that is far behind the others. */
export function holders(answer) {
  const found = [];
  const parts = makers(answer).flatMap((operator) => operator.subtasks.flatMap((subtask) => subtask.parts
    .filter((part) => !part.idle && !isEnd(part.watermark))
    .map((part) => ({ ...part, operator, subtask: subtask.subtask }))));
  const silent = parts.filter((part) => isNone(part.watermark));
  const known = parts.filter((part) => !isNone(part.watermark));
  if (silent.length > 0 && known.length > 0) {
    const [one] = silent;
    found.push({
      kind: "watermark",
      id: one.operator.uid,
      title: `${one.operator.name} holds event time back`,
      text: `${one.name ? `Its part ${one.name}` : `Its subtask ${one.subtask + 1}`} has given no record yet, so no window can fire. An idle time (with_idleness) would leave it out.`,
    });
  }
  if (known.length > 1) {
    const sorted = [...known].sort((one, other) => one.watermark - other.watermark);
    const [lowest, median] = [sorted[0], sorted[Math.floor(sorted.length / 2)]];
    if (median.watermark - lowest.watermark >= WATERMARK_BEHIND_MS) {
      found.push({
        kind: "watermark",
        id: lowest.operator.uid,
        title: `${lowest.operator.name} holds event time back`,
        text: `${lowest.name ? `Its part ${lowest.name}` : `Its subtask ${lowest.subtask + 1}`} is ${duration(median.watermark - lowest.watermark)} behind most others.`,
      });
    }
  }
  return found;
}

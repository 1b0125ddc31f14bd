// A line of a log as people read it, as `headrace logs` prints it: its keys and values are for programs.

const PAIR = /(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]\S*|)(?: |$)/gy;

// Keys that are told in another way, or are the same in all lines of a job.
const OF_PLACE = new Set(["time", "level", "host", "job", "operator", "subtask", "epoch", "machine", "logger", "event"]);

/** The keys and values of a whole line; nothing if it has anything else. */
function pairsOf(line) {
  const pairs = new Map();
  PAIR.lastIndex = 0;
  while (PAIR.lastIndex < line.length) {
    const found = PAIR.exec(line);
    if (!found) return new Map();
    pairs.set(found[1], found[2].startsWith('"') ? found[2].slice(1, -1).replace(/\\(.)/g, "$1") : found[2]);
  }
  return pairs;
}

/** When, how grave, where and what: `{at, level, place, said}`. Of a line of another form all of it is said. */
export function partsOf(line) {
  const pairs = pairsOf(line);
  const at = Date.parse(pairs.get("time"));
  if (Number.isNaN(at) || !pairs.has("event")) return { at: null, level: "INFO", place: "", said: line };
  const subtask = pairs.has("subtask") ? `, subtask ${Number(pairs.get("subtask")) + 1}` : "";
  const place = pairs.has("operator") ? pairs.get("operator") + subtask : pairs.get("machine") ?? pairs.get("logger") ?? "";
  const others = [...pairs].filter(([name, value]) => !OF_PLACE.has(name) && !(name === "attempt" && value === "0"));
  return { at, level: pairs.get("level") ?? "INFO", place: [place, ...others.map((pair) => pair.join("="))].filter(Boolean).join(" "), said: pairs.get("event") };
}

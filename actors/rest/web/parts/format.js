// Numbers, times and sizes for people. All of it is pure.

const UNITS = ["", "k", "M", "G", "T", "P"];

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number in three digits: 12, 4.5k, 318M. */
export function count(value) {
  if (!isNumber(value)) return "–";
  let [rest, unit] = [Math.abs(value), 0];
  while (rest >= 999.5 && unit < UNITS.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  const digits = unit === 0 && Number.isInteger(rest) ? 0 : rest < 9.95 ? 2 : rest < 99.5 ? 1 : 0;
  const text = rest.toFixed(digits).replace(/\.0+$|(\.\d*[1-9])0+$/, "$1");
  return `${value < 0 ? "−" : ""}${text}${UNITS[unit]}`;
}

/** A whole number with its thousands set apart. */
export const whole = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en-US") : "–");

export const rate = (value) => (isNumber(value) ? `${count(Math.round(value * 10) / 10)}/s` : "–");

export const percent = (share) => (isNumber(share) ? `${Math.round(share * 100)} %` : "–");

export function bytes(value) {
  if (!isNumber(value)) return "–";
  const names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let [rest, unit] = [value, 0];
  while (rest >= 1024 && unit < names.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${rest < 10 && unit > 0 ? rest.toFixed(1) : Math.round(rest)} ${names[unit]}`;
}

/** A length of time, from milliseconds to days, in its two largest units. */
export function duration(ms) {
  if (!isNumber(ms) || ms < 0) return "–";
  if (ms < 1000) return `${ms < 10 && !Number.isInteger(ms) ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  const parts = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  const shown = parts.slice(first, first + 2).filter(([value]) => value > 0);
  return shown.map(([value, unit]) => `${value} ${unit}`).join(" ");
}

const pad = (value, digits = 2) => String(value).padStart(digits, "0");

/** A point in time by this browser's clock, with its day unless that is today. */
export function time(ms, { withMs = false } = {}) {
  if (!isNumber(ms) || ms <= 0) return "–";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return "–";
  const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  const text = withMs ? `${clock}.${pad(at.getMilliseconds(), 3)}` : clock;
  return at.toDateString() === new Date().toDateString() ? text : `${day(at)} ${text}`;
}

const day = (at) => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;

// Event time has no day before the first and none after the last that a long number of milliseconds can say.
const ENDLESS = 9e18;

export const isEnd = (watermark) => isNumber(watermark) && watermark >= ENDLESS;
export const isNone = (watermark) => !isNumber(watermark) || watermark <= -ENDLESS;

/** A watermark: event time, in UTC. */
export function watermark(ms) {
  if (isNone(ms)) return "none yet";
  if (isEnd(ms)) return "end of input";
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? whole(ms) : at.toISOString().replace("T", " ").replace("Z", "");
}

/** How far event time is behind `now`; an empty text where that says nothing. */
export function lag(ms, now) {
  if (isNone(ms) || isEnd(ms)) return "";
  return now >= ms ? duration(now - ms) : `${duration(ms - now)} ahead`;
}

/** What a text is cut to that has little room. */
export const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

/** `3 subtasks`, `1 subtask`. */
export const counted = (number, noun, plural = `${noun}s`) => `${whole(number)} ${number === 1 ? noun : plural}`;

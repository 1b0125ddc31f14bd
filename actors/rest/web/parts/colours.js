// The colour of an operator: from blue (idle) to red (busy), and black as it is held up. Pure.

const IDLE = [58, 110, 207];
const HALF = [150, 84, 178];
const BUSY = [214, 55, 55];
const HELD = [14, 16, 20];

const mix = (one, other, share) => one.map((value, index) => value + (other[index] - value) * share);
const clamp = (share) => Math.min(Math.max(share, 0), 1);

/** As CSS says it. */
export function loadColour(busy, backpressured) {
  const share = clamp(busy);
  const alive = share < 0.5 ? mix(IDLE, HALF, share * 2) : mix(HALF, BUSY, share * 2 - 1);
  return `rgb(${mix(alive, HELD, clamp(backpressured * 1.15)).map(Math.round).join(" ")})`;
}

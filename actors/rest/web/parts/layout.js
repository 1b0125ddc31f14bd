// Places the vertices of a job in layers, so that edges go one way and cross seldom. It knows nothing of what vertices do,
// so the picture of a job stays the same while the job runs. All of it is pure.
//
// Source: Sugiyama, Tagawa, Toda, "Methods for Visual Understanding of Hierarchical System Structures" (layers, barycentres);
// places along a layer are the least squares under distances, by pooling adjacent violators.

const SWEEPS = 12;
const DUMMY_SIZE = 12;

/** Edges that close no loop, by depth first search in the given order. */
function forwardEdges(ids, edges) {
  const from = new Map(ids.map((id) => [id, []]));
  for (const edge of edges) if (from.has(edge.source) && from.has(edge.target)) from.get(edge.source).push(edge);
  const state = new Map();
  const kept = [];
  for (const root of ids) {
    if (state.has(root)) continue;
    const stack = [[root, 0]];
    state.set(root, "open");
    while (stack.length > 0) {
      const top = stack[stack.length - 1];
      const edge = from.get(top[0])[top[1]++];
      if (edge === undefined) {
        state.set(top[0], "done");
        stack.pop();
      } else if (!edge.feedback && state.get(edge.target) !== "open") {
        kept.push(edge);
        if (!state.has(edge.target)) {
          state.set(edge.target, "open");
          stack.push([edge.target, 0]);
        }
      }
    }
  }
  return kept;
}

/** The layer of each vertex: behind all that it reads, and as near as possible to what reads it. */
function layersOf(ids, edges) {
  const before = new Map(ids.map((id) => [id, []]));
  const after = new Map(ids.map((id) => [id, []]));
  for (const { source, target } of edges) {
    before.get(target).push(source);
    after.get(source).push(target);
  }
  const waiting = new Map(ids.map((id) => [id, before.get(id).length]));
  const order = ids.filter((id) => waiting.get(id) === 0);
  const layer = new Map(ids.map((id) => [id, 0]));
  for (let index = 0; index < order.length; index += 1) {
    for (const target of after.get(order[index])) {
      layer.set(target, Math.max(layer.get(target), layer.get(order[index]) + 1));
      waiting.set(target, waiting.get(target) - 1);
      if (waiting.get(target) === 0) order.push(target);
    }
  }
  for (const id of [...order].reverse()) {
    const targets = after.get(id).map((target) => layer.get(target));
    if (targets.length > 0 && before.get(id).length === 0) layer.set(id, Math.min(...targets) - 1);
  }
  return layer;
}

/** Layers as lists of places; an edge over several layers has a dummy in each between. */
function placesOf(ids, edges, layer) {
  const height = ids.length === 0 ? 0 : Math.max(...ids.map((id) => layer.get(id))) + 1;
  const layers = Array.from({ length: height }, () => []);
  const byId = new Map();
  for (const id of ids) {
    const place = { id, isDummy: false, layer: layer.get(id), up: [], down: [], at: 0 };
    byId.set(id, place);
    layers[place.layer].push(place);
  }
  const chains = edges.map((edge) => {
    const chain = [byId.get(edge.source)];
    for (let between = layer.get(edge.source) + 1; between < layer.get(edge.target); between += 1) {
      const dummy = { id: null, isDummy: true, layer: between, up: [], down: [], at: 0 };
      layers[between].push(dummy);
      chain.push(dummy);
    }
    chain.push(byId.get(edge.target));
    for (let index = 1; index < chain.length; index += 1) {
      chain[index - 1].down.push(chain[index]);
      chain[index].up.push(chain[index - 1]);
    }
    return { edge, chain };
  });
  return { layers, chains, byId };
}

const meanOf = (places, read) => places.reduce((sum, place) => sum + read(place), 0) / places.length;

/** How many pairs of edges between neighbouring layers cross. */
function crossingsOf(layers) {
  let crossings = 0;
  for (const layer of layers) {
    const ends = layer.flatMap((place) => place.down.map((next) => next.order).sort((one, other) => one - other));
    // Inversions, by insertion into a sorted list.
    const seen = [];
    for (const end of ends) {
      let [low, high] = [0, seen.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (seen[middle] <= end) low = middle + 1;
        else high = middle;
      }
      crossings += seen.length - low;
      seen.splice(low, 0, end);
    }
  }
  return crossings;
}

/** Orders each layer by the mean place of its neighbours, to and fro, and keeps the order with the fewest crossings. */
function orderLayers(layers) {
  const number = () => layers.forEach((layer) => layer.forEach((place, index) => (place.order = index)));
  number();
  let best = { crossings: crossingsOf(layers), orders: layers.map((layer) => [...layer]) };
  for (let sweep = 0; sweep < SWEEPS && best.crossings > 0; sweep += 1) {
    const isDown = sweep % 2 === 0;
    for (const layer of isDown ? layers : [...layers].reverse()) {
      const wish = new Map(layer.map((place) => {
        const beside = isDown ? place.up : place.down;
        return [place, beside.length > 0 ? meanOf(beside, (next) => next.order) : place.order];
      }));
      layer.sort((one, other) => wish.get(one) - wish.get(other) || one.order - other.order);
      layer.forEach((place, index) => (place.order = index));
    }
    const crossings = crossingsOf(layers);
    if (crossings < best.crossings) best = { crossings, orders: layers.map((layer) => [...layer]) };
  }
  best.orders.forEach((layer, index) => (layers[index] = layer));
  number();
}

/** Puts the places of a layer as near as possible to where they wish to be, in their order and with their distances. */
function settle(layer, wishes, room) {
  let offset = 0;
  const blocks = [];
  layer.forEach((place, index) => {
    if (index > 0) offset += (room(layer[index - 1]) + room(place)) / 2;
    place.offset = offset;
    let block = { sum: (wishes[index] - offset) * (place.isDummy ? 0.5 : 1), weight: place.isDummy ? 0.5 : 1, places: [place] };
    while (blocks.length > 0 && blocks[blocks.length - 1].sum / blocks[blocks.length - 1].weight > block.sum / block.weight) {
      const last = blocks.pop();
      block = { sum: last.sum + block.sum, weight: last.weight + block.weight, places: [...last.places, ...block.places] };
    }
    blocks.push(block);
  });
  for (const block of blocks) for (const place of block.places) place.at = block.sum / block.weight + place.offset;
}

function placeLayers(layers, room) {
  for (const layer of layers) settle(layer, layer.map(() => 0), room);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const isDown = sweep % 2 === 0;
    for (const layer of isDown ? layers : [...layers].reverse()) {
      const wishes = layer.map((place) => {
        const beside = sweep > SWEEPS - 3 ? [...place.up, ...place.down] : isDown ? place.up : place.down;
        return beside.length > 0 ? meanOf(beside, (next) => next.at) : place.at;
      });
      settle(layer, wishes, room);
    }
  }
}

/**
 * Lays a graph out.
 *
 * `ids` and `edges` (`{source, target, feedback?}`) are in the order of the program. `size` is that of a vertex, `gap` the
 * distances along and across layers, `isDown` whether layers follow downwards rather than to the right. Gives the middle of
 * each vertex, the points of each edge, and the size of it all.
 */
export function layOut(ids, edges, { size, gap, isDown }) {
  const forward = forwardEdges(ids, edges);
  const { layers, chains, byId } = placesOf(ids, forward, layersOf(ids, forward));
  orderLayers(layers);
  const [length, breadth] = isDown ? [size.height, size.width] : [size.width, size.height];
  placeLayers(layers, (place) => (place.isDummy ? DUMMY_SIZE : breadth) + gap.across);
  const all = layers.flat();
  const least = Math.min(0, ...all.map((place) => place.at - breadth / 2));
  const most = Math.max(0, ...all.map((place) => place.at + breadth / 2));
  const point = (place, shift = 0) => {
    const along = place.layer * (length + gap.along) + length / 2 + shift;
    const across = place.at - least;
    return isDown ? { x: across, y: along } : { x: along, y: across };
  };
  const routes = new Map();
  for (const { edge, chain } of chains) {
    const points = [point(chain[0], length / 2)];
    for (const place of chain.slice(1, -1)) points.push(point(place, -length / 2), point(place, length / 2));
    points.push(point(chain[chain.length - 1], -length / 2));
    routes.set(edge, points);
  }
  for (const edge of edges) {
    if (routes.has(edge) || !byId.has(edge.source) || !byId.has(edge.target)) continue;
    routes.set(edge, [point(byId.get(edge.source), length / 2), point(byId.get(edge.target), -length / 2)]); // closes a loop
  }
  const along = layers.length * (length + gap.along) - gap.along;
  const vertices = new Map([...byId].map(([id, place]) => [id, point(place)]));
  return { vertices, routes, width: isDown ? most - least : along, height: isDown ? along : most - least };
}

/** A smooth line through the points of an edge, as SVG says it. */
export function curve(points, isDown) {
  const text = ({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`;
  return points.slice(1).reduce((path, to, index) => {
    const from = points[index];
    const middle = isDown ? (from.y + to.y) / 2 : (from.x + to.x) / 2;
    const [first, second] = isDown
      ? [{ x: from.x, y: middle }, { x: to.x, y: middle }]
      : [{ x: middle, y: from.y }, { x: middle, y: to.y }];
    return `${path}C${text(first)} ${text(second)} ${text(to)}`;
  }, `M${text(points[0])}`);
}

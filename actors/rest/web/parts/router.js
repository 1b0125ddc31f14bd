// Where we are, in the part of the address behind `#`: /job/<id>/<tab>/... Each part is quoted, as ids may hold anything.

import { useEffect, useState } from "./html.js";

const parse = () => {
  const [where] = location.hash.replace(/^#\/?/, "").split("?");
  return where.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
};

/** The parts of the present address. */
export function useRoute() {
  const [route, setRoute] = useState(parse);
  useEffect(() => {
    const moved = () => setRoute(parse());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return route;
}

/** The address of a place. */
export const href = (...parts) => `#/${parts.filter((part) => part !== undefined).map((part) => encodeURIComponent(part)).join("/")}`;

export const go = (...parts) => {
  location.hash = href(...parts).slice(1);
};

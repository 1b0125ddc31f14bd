// What all modules write pages with: Preact, its hooks, and templates. A text in a template is a text, never markup.

import htm from "../vendor/htm.js";
import { Component, Fragment, h, render } from "../vendor/preact.js";

export { Component, Fragment, h, render };
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";

export const html = htm.bind(h);
